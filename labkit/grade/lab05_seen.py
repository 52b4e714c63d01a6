"""Lab 05: what one rank should have done and what it did, and the judgement of its shards.

A rank of a layer on tp ranks holds 1/tp of a matrix that is cut. Its bytes are those of the
storages behind its tensors, so a slice that keeps the whole matrix alive counts as the whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.grade.check import CheckFailed
from labkit.grade.lab05_ranks import Trial

ATOL = 1e-12  # float64, values of about one: sums over ranks differ by a few 1e-16
SLACK = 1.5  # a mask or a table of positions is no second copy of the weights
Traffic = Sequence[tuple[str, str, int]]  # operation, axis, payload bytes


@dataclass(frozen=True, kw_only=True)
class Want:
    """What one rank must have in one trial, from the serial layer.

    Args:
        shards: parameters by name, in the order of the whole tensors in Part.whole.
        grads: of the shards.
        forward, backward: the collectives; None where the exercise judges them itself.
    """

    output: torch.Tensor
    input_grads: tuple[torch.Tensor | None, ...]
    shards: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor]
    forward: Traffic | None
    backward: Traffic | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank did in one trial, beside what it should have done."""

    trial: Trial
    rank: int
    want: Want
    got: dict[str, Any]
    group: tuple[dict[str, Any], ...]  # `got` of all ranks of its group, by place
    wants: tuple[Want, ...]  # the same of `want`

    @property
    def where(self) -> dict[str, Any]:
        return {"rank": self.rank, "case": self.trial.told}


Cause = Callable[[str, Seen], str]


def no_cause(what: str, seen: Seen) -> str:
    """An exercise without messages of its own; `what` is such as "output" or "grad bias"."""
    return ""


def judge_shards(seen: Seen, cause: Cause) -> None:
    """Names, shapes and values of the parameters; then the bytes that the rank really holds."""
    wanted, got = seen.want.shards, seen.got.get("parameters", {})
    if set(got) != set(wanted):
        told = {"expected": _shapes(wanted), "got": _shapes(got) or "none"}
        raise CheckFailed("lab05.layer.names", **told, **seen.where)
    whole = dict(zip(wanted, seen.trial.parts[seen.rank].whole, strict=False))
    for name, shard in wanted.items():
        if got[name].shape == shard.shape and torch.equal(got[name], shard):
            continue
        key = cause(f"shard {name}", seen) or _shard_cause(seen, name, whole[name])
        told = {"expected": _told(shard), "got": _told(got[name]), "name": name}
        raise CheckFailed(key, **told, **seen.where)
    cut = [w is not None and w.numel() > wanted[name].numel() for name, w in whole.items()]
    if any(
        alive and was_cut for alive, was_cut in zip(seen.got.get("alive", []), cut, strict=False)
    ):
        raise CheckFailed("lab05.layer.alive", **seen.where)
    most, held = sum(x.numel() * x.itemsize for x in wanted.values()), seen.got.get("held_bytes", 0)
    if seen.trial.tp > 1 and held > SLACK * most:
        raise CheckFailed("lab05.layer.held", expected=most, got=held, **seen.where)


def _shard_cause(seen: Seen, name: str, whole: torch.Tensor | None) -> str:
    got, shard, tp = seen.got["parameters"][name], seen.want.shards[name], seen.trial.tp
    if whole is not None and tp > 1 and got.shape == whole.shape != shard.shape:
        return "lab05.layer.shard_whole"
    if got.dim() == 2 and got.shape == shard.shape[::-1] and torch.equal(got, shard.T):
        return "lab05.layer.shard_transposed"
    if whole is not None and got.shape != shard.shape:
        cuts = [whole.chunk(tp, dim)[0].shape for dim in range(whole.dim())]
        return "lab05.layer.shard_dim" if got.shape in cuts else "lab05.layer.shard_shape"
    return "lab05.layer.shard_values"


def close(got: Any, expected: torch.Tensor) -> bool:
    """Whether it is the same tensor, up to rounding."""
    same = isinstance(got, torch.Tensor) and got.shape == expected.shape
    return same and bool(((got - expected).abs() <= 100 * ATOL).all())


def adds_up(seen: Seen, name: str, places: Sequence[int] | None = None) -> bool:
    """Whether the ranks at these places (all, unless given) have parts of the right gradient."""
    chosen = seen.group if places is None else [seen.group[place] for place in places]
    parts, want = [got["grads"][name] for got in chosen], seen.want.grads[name]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        return False
    mean = all(close(part * len(parts), want) for part in parts)  # equal shares add up as well
    return close(sum(parts), want) and not mean


def told_calls(calls: Traffic) -> str:
    """Such as "all_reduce of 96 bytes, all_reduce of 96 bytes"."""
    return ", ".join(f"{operation} of {size} bytes" for operation, _, size in calls) or "nothing"


def _shapes(parameters: dict[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(x.shape)}" for name, x in sorted(parameters.items()))


def _told(x: torch.Tensor) -> str:
    numbers = ", ".join(f"{value:.4g}" for value in x.flatten()[:6].tolist())
    return f"{list(x.shape)} with {numbers}{', …' if x.numel() > 6 else ''}"
