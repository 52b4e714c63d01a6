"""Lab 02, ranks, messages and collectives: its exercises.

| exercises                  | oracle                    | what the program did             |
| -------------------------- | ------------------------- | -------------------------------- |
| ring_*, suspect            | sums on one process       | peers, messages, bytes, rounds   |
| swap, mean_loss, grid_sums | one process               | messages, collectives, no waits  |
| *_time_s, crossover_bytes  | replays of runs, 1 %      | -                                |
| two_levels                 | sums on one process       | bytes between hosts, and inside  |

What runs on the ranks is in lab02_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab02_clinic import check_grid_sums, check_mean_loss, check_swap, check_two_levels
from labkit.grade.lab02_price import check_crossover_bytes, check_ring_time_s, check_tree_time_s
from labkit.grade.lab02_ring import (
    check_all_gather,
    check_all_reduce,
    check_reduce_scatter,
    check_suspect,
)

EXERCISES = tuple(
    Exercise(id=f"lab02.{name}", name=name, points=points, check=check)
    for name, points, check in (
        ("ring_reduce_scatter", 3, check_reduce_scatter),
        ("ring_all_gather", 2, check_all_gather),
        ("ring_all_reduce", 1, check_all_reduce),
        ("suspect", 1, check_suspect),
        ("swap", 1, check_swap),
        ("mean_loss", 1, check_mean_loss),
        ("grid_sums", 1, check_grid_sums),
        ("ring_time_s", 1, check_ring_time_s),
        ("tree_time_s", 1, check_tree_time_s),
        ("crossover_bytes", 1, check_crossover_bytes),
        ("two_levels", 1, check_two_levels),
    )
)
