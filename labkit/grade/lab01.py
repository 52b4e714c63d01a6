"""Lab 01, the price of everything: its exercises.

| exercises             | oracle                           | what the program did         |
| --------------------- | -------------------------------- | ---------------------------- |
| num_parameters        | the instantiated model           | -                            |
| forward_flops         | torch's FLOP counter             | -                            |
| activation_bytes      | what autograd saves of a layer   | -                            |
| kv_bytes              | a cache that a model has filled  | -                            |
| state_gib             | the instantiated model           | -                            |
| roofline              | exact times of bytes and FLOPs   | -                            |
| rows_needed           | rows counted up one by one       | -                            |
| choose_segments       | every way to cut the layers      | -                            |
| run_segments, suspect | the plain run                    | layers run again, bytes held |
| predict_loss          | laws that records were made from | how it follows size and text |

What runs on the ranks is in lab01_run_ranks.py.
"""

from labkit.grade.check import Exercise
from labkit.grade.lab01_count import (
    check_activation_bytes,
    check_forward_flops,
    check_kv_bytes,
    check_num_parameters,
    check_state_gib,
)
from labkit.grade.lab01_roofline import check_roofline, check_rows_needed
from labkit.grade.lab01_run import check_run_segments, check_suspect
from labkit.grade.lab01_scaling import check_predict_loss
from labkit.grade.lab01_segments import check_choose_segments

EXERCISES = tuple(
    Exercise(id=f"lab01.{name}", name=name, points=points, check=check)
    for name, points, check in (
        ("num_parameters", 2, check_num_parameters),
        ("forward_flops", 2, check_forward_flops),
        ("activation_bytes", 2, check_activation_bytes),
        ("kv_bytes", 1, check_kv_bytes),
        ("state_gib", 1, check_state_gib),
        ("roofline", 2, check_roofline),
        ("rows_needed", 1, check_rows_needed),
        ("choose_segments", 3, check_choose_segments),
        ("run_segments", 2, check_run_segments),
        ("suspect", 1, check_suspect),
        ("predict_loss", 2, check_predict_loss),
    )
)
