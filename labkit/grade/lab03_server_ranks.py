"""What happens on the ranks while lab 03's synchronous parameter server is judged.

Single calls on whole numbers, which are watched, then five steps of training. A rank decides
nothing; the parent compares.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.grade.lab02_ranks import Case, draw, watch

LEARNING_RATE = 0.5
TRAINING_RATE = 0.02
NUM_STEPS = 5


def gradient_of(case: Case, rank: int) -> torch.Tensor:
    """Whole numbers whose mean over two, three or four ranks is whole too."""
    return 12 * draw(case, rank)


def weights_of(case: Case, rank: int) -> torch.Tensor:
    """Every rank's own: only the server's count."""
    return draw(case, 100 + rank)


def data_of(case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four samples of a linear regression in as many dimensions as the case has, and targets."""
    samples = Case(members=case.members, shape=(4, *case.shape), seed=case.seed + 50)
    x = draw(samples, rank) / 50
    return x, x.sum(1)


def descent(weights: torch.Tensor, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Gradient of half the mean squared error."""
    return x.T @ (x @ weights - targets) / len(x)


def run_server_step(
    world: dist.ProcessGroup, function: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """Every case on this rank: one call that is watched, then training; None for no member."""
    rank, seen = dist.get_rank(), list[dict[str, Any] | None]()
    groups = {case.members: dist.new_group(list(case.members)) for case in cases}
    for case in cases:
        if rank not in case.members:
            seen.append(None)
            continue
        group = groups[case.members]
        inputs = [weights_of(case, rank), gradient_of(case, rank)]
        outcome = watch(function, inputs, [LEARNING_RATE, group], str(case))
        seen.append(outcome | {"trained": _trained(function, case, group)})
    return seen


def _trained(function: Callable, case: Case, group: dist.ProcessGroup) -> list[Any]:
    """What this rank got back after each step."""
    weights = torch.zeros(case.shape, dtype=torch.float64)
    x, targets = data_of(case, dist.get_rank())
    after = []
    for _ in range(NUM_STEPS):
        got = function(weights, descent(weights, x, targets), TRAINING_RATE, group)
        weights = got.clone() if isinstance(got, torch.Tensor) else weights
        after.append(weights if isinstance(got, torch.Tensor) else None)
    return after
