"""Lab 04, sharding the training state: its exercises.

| exercises      | oracle               | what the program did                            |
| -------------- | -------------------- | ----------------------------------------------- |
| zero1, suspect | AdamW on one process | bytes held, bytes sent                          |
| zero2          | AdamW on one process | the same, and gradients alive during backward   |
| zero3          | plain layers, AdamW  | bytes held and sent by phase, whole layers alive |
| clip_grad_norm | one norm             | bytes sent                                      |
| checkpoint     | plain layers         | bytes kept, forward runs, random numbers        |

What is held is measured by lab04_meter.py; what runs on the ranks is in lab04_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab04_checkpoint import check_checkpoint
from labkit.grade.lab04_clip import check_clip_grad_norm
from labkit.grade.lab04_layers import check_zero3
from labkit.grade.lab04_zero import check_zero1, check_zero2

EXERCISES = tuple(
    Exercise(id=f"lab04.{key}", name=name, points=points, check=check)
    for key, name, points, check in (
        ("zero1", "Zero1", 2, check_zero1),
        ("suspect", "Suspect", 1, check_zero1),
        ("zero2", "Zero2", 2, check_zero2),
        ("zero3", "Zero3", 3, check_zero3),
        ("clip_grad_norm", "clip_grad_norm", 2, check_clip_grad_norm),
        ("checkpoint", "checkpoint", 2, check_checkpoint),
    )
)
