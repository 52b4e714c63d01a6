"""Lab 07, stretch: which copies an expert takes where it takes no more than its capacity.

The oracle is a loop with one counter for each expert: all first choices in the order of the tokens,
then all second ones.

Shapes: T tokens, k choices.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab07_ranks import run_kept

SIZES = ((6, 4, 2, 2), (1, 3, 2, 1), (9, 3, 1, 2), (12, 5, 3, 4), (7, 4, 2, 0), (5, 4, 2, 9))


def cases() -> list[tuple[torch.Tensor, int, int]]:
    """Indices [T, k], experts, capacity."""
    found = []
    for number, (T, num_experts, k, capacity) in enumerate(SIZES):
        generator = torch.Generator().manual_seed(number)
        scores = torch.rand(T, num_experts, generator=generator)
        scores[:, 1] += 0.4  # one expert that many tokens choose
        found.append((scores.topk(k, -1).indices, num_experts, capacity))
    return found


def kept(indices: torch.Tensor, capacity: int, by_token: bool = False) -> torch.Tensor:
    """One copy after another; `by_token` is the order of a likely mistake."""
    taken: Counter[int] = Counter()
    mask = torch.zeros(indices.shape, dtype=torch.bool)
    T, k = indices.shape
    by_slot = [(token, slot) for slot in range(k) for token in range(T)]
    for token, slot in sorted(by_slot) if by_token else by_slot:
        expert = int(indices[token, slot])
        mask[token, slot] = taken[expert] < capacity
        taken[expert] += 1
    return mask


def check_kept(learner: Learner) -> Iterator[str]:
    """Which copies stay, in which order, at most as many as fit."""
    every = cases()
    (seen,) = learner.run(run_kept, 1, every)
    for (indices, num_experts, capacity), got in zip(every, seen, strict=True):
        told: dict[str, Any] = {
            "indices": indices.tolist(),
            "experts": num_experts,
            "capacity": capacity,
        }
        expected, mask = kept(indices, capacity), got["first"]
        if got["changed"]:
            raise CheckFailed("lab07.kept.input", **told)
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            expect("lab07.kept.values", mask, expected, **told)
        if mask.shape == expected.shape and not torch.equal(mask, expected):
            loads = indices[mask].bincount(minlength=num_experts)
            shown = {"expected": expected.tolist(), "got": mask.tolist()}
            raise CheckFailed(_cause(mask, indices, capacity, loads), **shown, **told)
        expect("lab07.kept.values", mask, expected, **told)
        expect("lab07.kept.again", got["second"], mask, **told)
    yield from ("capacity", "order", "again")


def _cause(mask: torch.Tensor, indices: torch.Tensor, capacity: int, loads: torch.Tensor) -> str:
    if torch.equal(mask, kept(indices, capacity, by_token=True)):
        return "lab07.kept.by_token"
    if int(loads.max()) > capacity:
        return "lab07.kept.over"
    offered = indices.flatten().bincount(minlength=len(loads))
    if bool((loads < offered.clamp(max=capacity)).any()):
        return "lab07.kept.room_left"
    return "lab07.kept.values"
