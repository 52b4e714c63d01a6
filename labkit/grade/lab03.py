"""Lab 03, data parallelism: its exercises.

| exercises              | oracle                   | what the program did                         |
| ---------------------- | ------------------------ | -------------------------------------------- |
| server_step            | SGD on one process       | bytes of the server and of the others        |
| serve                  | the rule, step by step   | versions that scripted workers are given     |
| data_parallel, suspect | the run on one process   | collectives, buckets, when each is launched  |
| efficiency, knee_ranks | replays of real runs     | -                                            |
| compressed_all_reduce  | training in full numbers | bytes of the codes and of the scales         |

What runs on the ranks is in lab03_*_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab03_compressed import check_compressed_all_reduce
from labkit.grade.lab03_ddp import check_data_parallel
from labkit.grade.lab03_knee import check_efficiency, check_knee_ranks
from labkit.grade.lab03_serve import check_serve
from labkit.grade.lab03_server import check_server_step
from labkit.grade.lab03_suspect import check_suspect

EXERCISES = tuple(
    Exercise(id=f"lab03.{exercise}", name=name, points=points, check=check)
    for exercise, name, points, check in (
        ("server_step", "server_step", 2, check_server_step),
        ("serve", "serve", 2, check_serve),
        ("data_parallel", "DataParallel", 4, check_data_parallel),
        ("suspect", "suspect", 1, check_suspect),
        ("efficiency", "efficiency", 2, check_efficiency),
        ("knee_ranks", "knee_ranks", 1, check_knee_ranks),
        ("compressed_all_reduce", "compressed_all_reduce", 2, check_compressed_all_reduce),
    )
)
