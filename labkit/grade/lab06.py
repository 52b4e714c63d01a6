"""Lab 06, pipeline parallelism: its exercises.

| exercises              | oracle                          | what the program did                |
| ---------------------- | ------------------------------- | ----------------------------------- |
| gpipe, one_f_one_b     | virtual time of their actions   | micro-batches that a rank holds     |
| run_stage, suspect     | the batch on one process        | actions, activations held, messages |
| bubble_fraction        | replays of real runs            | -                                   |
| bubble_at_equal_memory | virtual time, round after round | -                                   |
| zero_bubble            | virtual time of its actions     | micro-batches that a rank holds     |

What runs on the ranks is in lab06_*_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab06_bubble import check_bubble_at_equal_memory, check_bubble_fraction
from labkit.grade.lab06_schedules import check_gpipe, check_one_f_one_b, check_zero_bubble
from labkit.grade.lab06_stage import check_run_stage
from labkit.grade.lab06_suspect import check_suspect

EXERCISES = tuple(
    Exercise(id=f"lab06.{name}", name=name, points=points, check=check)
    for name, points, check in (
        ("gpipe", 1, check_gpipe),
        ("one_f_one_b", 3, check_one_f_one_b),
        ("run_stage", 4, check_run_stage),
        ("suspect", 1, check_suspect),
        ("bubble_fraction", 1, check_bubble_fraction),
        ("bubble_at_equal_memory", 2, check_bubble_at_equal_memory),
        ("zero_bubble", 2, check_zero_bubble),
    )
)
