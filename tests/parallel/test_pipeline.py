"""run_schedule on real ranks, for every schedule: what it computes, sends, keeps, in which order.

Oracle: the same layers in one process, float64. Promised for p in 1, 2, 3, 4 and m in 1, 2, 3, 4,
5, 8 wherever a schedule is legal, with random delays: gradients and loss of the serial run,
messages between neighbours only and as many bytes as the formula says, the trace that the schedule
says, and its peak of micro-batches in flight.
"""

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.pipeline import (
    Boundary,
    Stage,
    dual_pipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    run_schedule,
    simulate_schedule,
    split_layers,
    zero_bubble,
    zero_bubble_v,
)

# Sums of at most 40 terms of unit scale in float64: rounding stays below 1e-14.
TOL = dict(rtol=0, atol=1e-12)
SCHEDULES = (naive, gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v, dual_pipe_v)
WIDTH, ROWS = 5, 3  # of a micro-batch
ROW_BYTES = 8 * WIDTH


class Layer(nn.Module):
    """A linear layer with bias, a gain, and a frozen layer: every kind of gradient there is."""

    def __init__(self, number):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.double()
        generator = torch.Generator().manual_seed(number)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.frozen.weight.requires_grad_(False)

    def forward(self, x):
        return x + torch.tanh(self.frozen(self.linear(x)) * self.gain)


def legal(num_ranks, num_micro_batches):
    """Every schedule that takes this p and m; the others refuse them."""
    refusals = {
        interleaved: num_micro_batches % num_ranks != 0,
        dual_pipe_v: num_micro_batches < 2 * num_ranks,
    }
    made = []
    for schedule in SCHEDULES:
        if refusals.get(schedule):
            with pytest.raises(
                ValueError, match=f"{num_micro_batches} micro-batches on {num_ranks} ranks"
            ):
                schedule(num_ranks, num_micro_batches)
        else:
            made.append(schedule(num_ranks, num_micro_batches))
    return made


def batch(rows, seed=0):
    """Every row has its own target, so a wrong pairing shows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)


def mean_loss(y, targets):
    return (y - targets).square().mean()


def serial(num_layers, x, targets, loss_fn=mean_loss):
    layers = nn.Sequential(*map(Layer, range(num_layers)))
    loss = loss_fn(layers(x), targets)
    loss.backward()
    return loss.detach(), [[p.grad for p in layer.parameters()] for layer in layers]


def own_stages(schedule, rank, num_layers, rows=ROWS):
    """This rank's stages and the numbers of their layers."""
    split = split_layers(num_layers, schedule.num_stages)
    mine = [split[schedule.stage(rank, c)] for c in range(schedule.num_stages_per_rank)]
    takes = Boundary(shape=(rows, WIDTH), dtype=torch.float64)
    return [Stage(nn.Sequential(*map(Layer, part)), takes) for part in mine], mine


def run(group, schedule, num_layers, x, targets, loss_fn=mean_loss, **options):
    """One run; gradients by layer, the ledger's messages, the trace, and the result."""
    rank = dist.get_rank(group)
    rows = len(x) // schedule.num_micro_batches
    stages, mine = own_stages(schedule, rank, num_layers, rows)
    trace = []
    pause = random.Random(rank)

    def observe(action):
        trace.append(action)
        time.sleep(pause.choice((0, 0, 0.001, 0.002)))  # another order of events on every rank

    with CommLedger() as ledger:
        result = run_schedule(
            schedule, stages, x, targets, group, loss_fn=loss_fn, observe=observe, **options
        )
    grads = {
        number: [p.grad for p in layer.parameters()]
        for stage, part in zip(stages, mine, strict=True)
        for number, layer in zip(part, stage.module, strict=True)
    }
    sent = [(call.peer, call.payload_bytes) for call in ledger.ops if call.operation == "send"]
    return grads, sent, trace, result, sum(stage.num_in_flight for stage in stages)


def run_all(group, num_micro_batches, num_layers):
    x, targets = batch(ROWS * num_micro_batches)
    return [
        run(group, schedule, num_layers, x, targets)
        for schedule in legal(dist.get_world_size(group), num_micro_batches)
    ]


def assert_grads(ranks, expected):
    """Every layer on exactly one rank, with the serial run's gradients."""
    got = {number: grads for rank in ranks for number, grads in rank.items()}
    assert sum(map(len, ranks)) == len(got) == len(expected)
    for number, grads in enumerate(expected):
        for ours, theirs in zip(got[number], grads, strict=True):
            if theirs is None:
                assert ours is None
            else:
                torch.testing.assert_close(ours, theirs, **TOL)


def expected_sent(schedule, rank):
    """(peer, bytes) of every message, without order: m over each boundary and direction."""
    sent = []
    for stage in range(1, schedule.num_stages):
        ends = schedule.rank_of(stage - 1), schedule.rank_of(stage)
        for mine, other in (ends, ends[::-1]):
            if mine == rank != other:
                sent += [(other, ROWS * ROW_BYTES)] * schedule.num_micro_batches
    return sent


@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_schedule(world_size, num_micro_batches):
    """P2: the loss is scaled once. P3: nothing hangs. P5: row i meets target i.

    P8: GPipe keeps m micro-batches, 1F1B min(m, p - rank).
    """
    num_layers = 2 * world_size + 1  # uneven
    ranks = run_ranks(run_all, world_size, num_micro_batches, num_layers, timeout=60.0)
    loss, expected = serial(num_layers, *batch(ROWS * num_micro_batches))
    for number, schedule in enumerate(legal(world_size, num_micro_batches)):
        results = [rank[number] for rank in ranks]
        assert_grads([grads for grads, *_ in results], expected)
        last = schedule.rank_of(schedule.num_stages - 1)
        peaks = simulate_schedule(schedule).peak_stash
        for rank, (_, sent, trace, result, left) in enumerate(results):
            assert tuple(trace) == schedule.ranks[rank]
            assert sorted(sent) == sorted(expected_sent(schedule, rank))
            assert {peer for peer, _ in sent} <= {(rank - 1) % world_size, (rank + 1) % world_size}
            assert result.peak_in_flight == peaks[rank]
            if schedule.name in ("gpipe", "one_f_one_b"):
                most = min(num_micro_batches, world_size - rank)
                held = num_micro_batches if schedule.name == "gpipe" else most
                assert result.peak_in_flight == held
            assert left == 0
            if rank == last:
                torch.testing.assert_close(result.loss, loss, **TOL)
            else:
                assert result.loss is None
