"""Lab 08, hybrid parallelism: its exercises.

| exercises            | oracle                              | what the program did             |
| -------------------- | ----------------------------------- | -------------------------------- |
| mesh_groups          | the digits of each rank             | -                                |
| train_step, suspect  | the whole batch on one process      | rows run, messages of each axis  |
| best_layout          | every layout, priced                | -                                |
| load_rank            | the whole model, cut for each rank  | numbers read; tokens of four ranks |
| checkpoint_interval  | simulated runs that fail at random  | -                                |

What learners are handed is in lab08_part.py, lab08_job.py and lab08_shards.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab08_interval import check_checkpoint_interval
from labkit.grade.lab08_mesh import check_mesh_groups
from labkit.grade.lab08_planner import check_best_layout
from labkit.grade.lab08_reshard import check_load_rank
from labkit.grade.lab08_step import check_suspect, check_train_step

EXERCISES = tuple(
    Exercise(id=f"lab08.{name}", name=name, points=points, check=check)
    for name, points, check in (
        ("mesh_groups", 1, check_mesh_groups),
        ("train_step", 4, check_train_step),
        ("suspect", 1, check_suspect),
        ("best_layout", 2, check_best_layout),
        ("load_rank", 3, check_load_rank),
        ("checkpoint_interval", 2, check_checkpoint_interval),
    )
)
