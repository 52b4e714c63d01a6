"""Bytes of weights that a rank of ZeRO 3 holds while a step runs, unit by unit.

    between steps    own shards, S/N
    unit k runs      own shards + root + unit k + the next one, if it is gathered ahead

The root is what is in no layer: embedding, last norm and head. It is used at both ends of the
model and so stays whole during forward, and again during backward. Units go forward 0, 1, ... and
backward in reverse. Whole means padded to a multiple of N.

Peak: S/N and the largest of these sums, where data parallelism holds S.
Source: ZeRO (arXiv 1910.02054), section 7.2.2; the schedule is labkit.parallel.fully_sharded's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.sharding import padded


@dataclass(frozen=True, kw_only=True)
class HeldPoint:
    """What is held at one moment: while a unit runs, or between the phases."""

    phase: str  # "start", "forward", "between", "backward", "end"
    unit: int | None
    held_bytes: int


def zero3_held_bytes(
    layer_numels: Sequence[int],
    root_numel: int,
    *,
    group_size: int,
    number_bytes: int,
    prefetch: bool = True,
) -> list[HeldPoint]:
    """A step of forward and backward, in order.

    Args:
        layer_numels: parameters of each layer, in the order of forward.
        root_numel: parameters outside of the layers.
        group_size: ranks that share them, N.
        number_bytes: of a parameter.
        prefetch: the next unit is gathered while one runs.
    """
    whole = [number_bytes * padded(count, group_size) for count in layer_numels]
    root = number_bytes * padded(root_numel, group_size)
    shards = (sum(whole) + root) // group_size
    order = list(range(len(whole)))

    def running(phase: str, order: list[int]) -> list[HeldPoint]:
        points = []
        for place, unit in enumerate(order):
            alive = order[place : place + 2] if prefetch else [unit]
            held = shards + root + sum(whole[each] for each in alive)
            points.append(HeldPoint(phase=phase, unit=unit, held_bytes=held))
        return points

    def nothing_whole(phase: str) -> HeldPoint:
        return HeldPoint(phase=phase, unit=None, held_bytes=shards)

    return [
        nothing_whole("start"),
        *running("forward", order),
        nothing_whole("between"),
        *running("backward", order[::-1]),
        nothing_whole("end"),
    ]
