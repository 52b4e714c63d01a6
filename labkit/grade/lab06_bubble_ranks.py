"""What happens on the ranks while lab 06's bubbles are recorded.

A plain executor runs GPipe and 1F1B on equal stages, and its log is kept. A stage is one linear
layer of D × D: 2·b·D² FLOP forward, twice that backward, the first rank's input included.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.measure.events import Event
from labkit.measure.log import EventLog
from labkit.parallel.pipeline import Action, Schedule, gpipe, one_f_one_b

WIDTH, ROWS = 8, 4
FORWARD_FLOPS = 2.0 * ROWS * WIDTH**2
# (p, m): groups of the first p ranks of one world
CASES = ((4, 8), (4, 4), (2, 5), (4, 2), (3, 1))
MAKE = {"gpipe": gpipe, "1f1b": one_f_one_b}


def record_steps(world: dist.ProcessGroup) -> dict[tuple[str, int, int], list[Event]]:
    """This rank's events of every case that it is part of, by (schedule, p, m)."""
    sizes = sorted({p for p, _ in CASES})
    groups = {p: dist.new_group(list(range(p))) for p in sizes}
    logs = {}
    for name, make in MAKE.items():
        for p, m in CASES:
            if dist.get_rank() < p:
                logs[name, p, m] = _step(make(p, m), groups[p])
    return logs


def _step(schedule: Schedule, group: dist.ProcessGroup) -> list[Event]:
    rank = dist.get_rank(group)
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    with EventLog() as log:
        _run(layer, schedule.ranks[rank], group)
    return log.events


def _run(layer: nn.Module, actions: Sequence[Action], group: dist.ProcessGroup) -> None:
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    stash: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    sending: list[Any] = []
    for action in actions:
        if action.kind == "F":
            x = torch.ones(ROWS, WIDTH)
            if rank > 0:
                dist.recv(x, rank - 1, group)
            y = layer(x.requires_grad_())
            if rank < last:
                sending.append(dist.isend(y.detach(), rank + 1, group))
            stash[action.micro_batch] = x, y
        else:
            x, y = stash.pop(action.micro_batch)
            gradient = torch.ones(ROWS, WIDTH)
            if rank < last:
                dist.recv(gradient, rank + 1, group)
            y.backward(gradient)
            if rank > 0 and x.grad is not None:
                sending.append(dist.isend(x.grad, rank - 1, group))
    for work in sending:
        work.wait()
