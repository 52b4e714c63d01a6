"""The smallest lab: the example that check.py tells of, and what the tests of grading grade."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from labkit.grade.check import Exercise, Learner, expect
from labkit.measure.ledger import CommLedger

SIZES = (1, 3, 41)


def _doubled(group: dist.ProcessGroup, double: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(size, dtype=torch.float64)
    return double(x), x


def _check_double(learner: Learner) -> Iterator[str]:
    for size in SIZES:
        x = torch.arange(size, dtype=torch.float64)
        doubled, after = learner.run(_doubled, 1, size)[0]
        expect("lab00.double.values", doubled, 2 * x, size=size)
        expect("lab00.double.untouched", after, x)
    yield "values"
    yield "untouched"


def _summed(group: dist.ProcessGroup, total: Any, size: int) -> tuple[torch.Tensor, int]:
    x = torch.arange(size, dtype=torch.float64) + dist.get_rank(group)
    with CommLedger() as ledger:
        result = total(x, group)
    return result, ledger.bytes_sent()


def _check_total(learner: Learner) -> Iterator[str]:
    for world_size, size in ((1, 3), (2, 41), (4, 4)):
        x = torch.arange(size, dtype=torch.float64)
        expected = world_size * x + world_size * (world_size - 1) / 2
        sent = 2 * (world_size - 1) * size * 8 // world_size  # one all-reduce: 2(N−1)/N · S
        for rank, (result, bytes_sent) in enumerate(learner.run(_summed, world_size, size)):
            where = {"rank": rank, "world_size": world_size}
            expect("lab00.total.values", result, expected, **where)
            expect("lab00.total.bytes", bytes_sent, sent, **where)
    yield "values"
    yield "bytes"


EXERCISES = (
    Exercise(id="lab00.double", name="double", points=1, check=_check_double),
    Exercise(id="lab00.total", name="total", points=2, check=_check_total),
)
