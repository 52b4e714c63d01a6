"""Bad input to run_schedule: the same ValueError on every rank, before anything is sent.

Oracle: by hand. Also promised: a run after one that failed, stages without a gradient, and layers
that do not divide over the stages.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.pipeline import (
    Action,
    Boundary,
    Schedule,
    Stage,
    gpipe,
    one_f_one_b,
    run_schedule,
    split_layers,
    zero_bubble,
)

WIDTH = 3


def boundary(*shape, dtype=torch.float64):
    return Boundary(shape=shape, dtype=dtype)


def linear(takes=WIDTH, gives=WIDTH):
    layer = nn.Linear(takes, gives).double()
    nn.init.ones_(layer.weight)
    return layer


class Halves(nn.Module):
    def forward(self, x):
        return x.float()


def case(name, rank):
    """Arguments of one rank: schedule, stages, inputs, targets."""
    schedule = one_f_one_b(2, 2)
    rows, stages, targets = 4, [Stage(linear(), boundary(2, WIDTH))], None
    if name == "does not divide":
        rows = 5
    elif name == "other rows" and rank == 1:
        targets = torch.ones(6, WIDTH)
    elif name == "no rows":
        rows = 0
    elif name == "shape" and rank == 0:
        stages = [Stage(linear(gives=4), boundary(2, WIDTH))]
    elif name == "dtype" and rank == 0:
        stages = [Stage(Halves(), boundary(2, WIDTH))]
    elif name == "takes" and rank == 0:
        stages = [Stage(linear(), boundary(3, WIDTH))]
    elif name == "cannot" and rank == 1:
        stages = [Stage(linear(takes=7), boundary(2, WIDTH))]
    elif name == "stages" and rank == 1:
        stages = stages * 2
    elif name == "other schedule" and rank == 1:
        schedule = gpipe(2, 2)
    elif name == "other size" or (name == "other size on one rank" and rank == 1):
        schedule = gpipe(3, 2)
    elif name == "illegal" or (name == "illegal on one rank" and rank == 1):
        rows_of = (Action("F", 0), Action("B", 0)), (Action("B", 0), Action("F", 0))
        schedule = Schedule(
            name="mine",
            num_stages_per_rank=1,
            placement="loop",
            num_micro_batches=1,
            ranks=rows_of,
        )
    inputs = None if name == "no inputs" and rank == 0 else torch.ones(rows, WIDTH).double()
    return schedule, stages, inputs, torch.ones(rows, WIDTH) if targets is None else targets


CASES = {
    "does not divide": "5 rows does not divide over 2 micro-batches",
    "other rows": r"inputs are float64 \[4, 3\], targets are float32 \[6, 3\]",
    "no rows": "0 rows does not divide over 2",
    "no inputs": "needs inputs on the rank of the first stage",
    "shape": r"stage 0 gives float64 \[2, 4\], stage 1 takes float64 \[2, 3\]",
    "dtype": r"stage 0 gives float32 \[2, 3\], stage 1 takes float64 \[2, 3\]",
    "takes": r"stage 0 takes float64 \[3, 3\], a micro-batch of the inputs is float64 \[2, 3\]",
    "cannot": r"stage 1 cannot take float64 \[2, 3\]: RuntimeError",
    "stages": "rank 1 has 2 stages, one_f_one_b runs 1 a rank",
    "other schedule": "rank 0 runs .*one_f_one_b.*, rank 1 runs .*gpipe",
    "other size": "schedule of 3 ranks, the group has 2",
    "other size on one rank": "rank 0 runs .*one_f_one_b.*, rank 1 runs .*gpipe",
    "illegal on one rank": "rank 0 runs .*one_f_one_b.*, rank 1 runs .*mine",
    "no tokens": "loss_divisor is 0 on rank",
    "illegal": "rank 1 runs B0 before the forward of stage 1, micro-batch 0",
}


def squares(y, targets):
    return (y - targets).square().mean()


def refuse_all(group):
    """The message of every case on this rank, and how much was sent; then a run that works."""
    told = {}
    rank = dist.get_rank(group)
    with CommLedger() as ledger:
        for name in CASES:
            schedule, stages, inputs, targets = case(name, rank)
            with pytest.raises(ValueError, match=CASES[name]) as caught:
                run_schedule(
                    schedule,
                    stages,
                    inputs,
                    targets,
                    group,
                    loss_fn=squares,
                    loss_divisor=0 if name == "no tokens" else None,
                )
            told[name] = str(caught.value)
            assert all(p.grad is None for p in stages[0].module.parameters())
        sent = ledger.count("send")
    schedule, stages, inputs, targets = case("good", rank)
    run_schedule(schedule, stages, inputs, targets, group, loss_fn=squares)
    return told, sent, stages[0].module.weight.grad is not None


def test_every_rank_raises_the_same_before_anything_is_sent():
    """P5 and the rest; with debug, a rank that went on alone would be named at once."""
    first, second = run_ranks(refuse_all, 2, debug=True)
    assert first == second
    _, sent, works_afterwards = first
    assert sent == 0
    assert works_afterwards


def fails_half_way(group):
    """A loss that raises on the last rank; its stage is then used again."""
    schedule = zero_bubble(1, 2)
    stages = [Stage(linear(), boundary(1, WIDTH))]
    x = torch.ones(2, WIDTH).double()

    def broken(y, targets):
        raise RuntimeError("a learner's mistake")

    with pytest.raises(RuntimeError, match="mistake"):
        run_schedule(schedule, stages, x, x, group, loss_fn=broken)
    result = run_schedule(schedule, stages, x, x, group, loss_fn=squares)
    return stages[0].num_in_flight, result.peak_in_flight


def test_a_run_after_one_that_failed():
    assert run_ranks(fails_half_way, 1) == [(0, 1)]


class Detached(nn.Module):
    """Uses its input for nothing that a gradient flows through."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH).double())

    def forward(self, x):
        return x.detach() + self.bias


def without_gradients(group, make):
    rank, schedule = dist.get_rank(group), make(2, 2)
    first = linear().requires_grad_(False) if rank == 0 else Detached()
    x = torch.ones(2, WIDTH).double()
    run_schedule(schedule, [Stage(first, boundary(1, WIDTH))], x, x, group, loss_fn=squares)
    return [p.grad for p in first.parameters()]


@pytest.mark.parametrize("make", [one_f_one_b, zero_bubble])
def test_frozen_stages_and_an_input_that_is_not_used(make):
    frozen, (bias,) = run_ranks(without_gradients, 2, make)
    assert frozen == [None, None]
    assert bias.shape == (WIDTH,)


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [(7, 3, [3, 2, 2]), (8, 4, [2, 2, 2, 2]), (4, 4, [1, 1, 1, 1]), (5, 1, [5])],
)
def test_layers_over_stages(num_layers, num_stages, sizes):
    parts = split_layers(num_layers, num_stages)
    assert [len(part) for part in parts] == sizes
    assert [layer for part in parts for layer in part] == list(range(num_layers))


@pytest.mark.parametrize(("num_layers", "num_stages"), [(2, 3), (0, 1), (4, 0)])
def test_too_few_layers(num_layers, num_stages):
    with pytest.raises(ValueError, match=f"{num_layers} layers over {num_stages} stages"):
        split_layers(num_layers, num_stages)
