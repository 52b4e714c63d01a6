"""Lab 07, mixture of experts: its exercises.

| exercises      | oracle                                | what the program did                 |
| -------------- | ------------------------------------- | ------------------------------------ |
| route          | the formulas, token by token          | gradients of weights and of the loss |
| moe, suspect   | every expert on every token           | bytes of tokens and counts           |
| sync_gradients | the mean loss of all ranks' tokens    | bytes, and the groups they went over |
| kept           | one copy after another, with counters | -                                    |

All numbers are in float64. What runs on the ranks is in lab07_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab07_capacity import check_kept
from labkit.grade.lab07_moe import check_moe, check_suspect
from labkit.grade.lab07_router import check_route
from labkit.grade.lab07_sync import check_sync_gradients

EXERCISES = tuple(
    Exercise(id=f"lab07.{name}", name=name, points=points, check=check)
    for name, points, check in (
        ("route", 2, check_route),
        ("moe", 4, check_moe),
        ("suspect", 1, check_suspect),
        ("sync_gradients", 2, check_sync_gradients),
        ("kept", 1, check_kept),
    )
)
