"""Parameter servers, synchronous, sharded and asynchronous.

Promised: the synchronous server does what one process does with the whole batch, and its bytes are
those of the chapter; the asynchronous one loses no update and keeps every gradient's staleness
within the bound. Oracle: serial SGD and AdamW in float64; whole numbers where the order of the
updates is not fixed. Row D14 of the list of pitfalls has its tests here.
"""

import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.parameter_server import AsyncWorker, ParameterServer, serve

TOL = dict(rtol=1e-9, atol=1e-12)  # 20 steps of float64
ROWS = 12  # divides by 1, 2, 3 and 4
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
}


def net(seed):
    layers = nn.Sequential(nn.Linear(3, 41), nn.Tanh(), nn.Linear(41, 1), nn.BatchNorm1d(1))
    generator = torch.Generator().manual_seed(seed)
    for parameter in layers.double().parameters():
        parameter.data.normal_(generator=generator)
    layers[3].requires_grad_(False).eval()
    return layers


def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)


def loss(module, x):
    return (module(x) - x.sum(1, keepdim=True)).square().mean()


def train(module, step, parts):
    for x in parts:
        module.zero_grad()
        loss(module, x).backward()
        step()
    return [p.detach() for p in module.parameters()]


def serial(optimizer, steps=20):
    module = net(0)
    made = OPTIMIZERS[optimizer]([p for p in module.parameters() if p.requires_grad])
    return train(module, made.step, [data(step) for step in range(steps)])


def synchronous(group, optimizer, servers):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    module = net(rank if rank != servers[0] else 0)
    server = ParameterServer(module, OPTIMIZERS[optimizer], group, servers=servers)
    weights = train(module, server.step, [data(step).chunk(size)[rank] for step in range(20)])
    return weights, server.optimizer is not None


@pytest.mark.parametrize(
    ("world_size", "optimizer", "servers"),
    [
        (1, "sgd", (0,)),
        (2, "sgd", (0,)),
        (3, "adamw", (2,)),
        (4, "sgd", (0,)),
        (4, "adamw", (0, 1, 2, 3)),
        (4, "sgd", (3, 1)),
    ],
)
def test_synchronous_matches_one_process(world_size, optimizer, servers):
    expected = serial(optimizer)
    for rank, (got, has_state) in enumerate(run_ranks(synchronous, world_size, optimizer, servers)):
        assert has_state == (rank in servers), "only servers keep optimizer state"
        for ours, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **TOL)


def bytes_of_a_step(group, servers):
    module = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(4)])
    server = ParameterServer(module, OPTIMIZERS["sgd"], group, servers=servers)
    with CommLedger() as ledger:
        module(torch.ones(1, 4)).sum().backward()
        quiet = ledger.count() == 0
        server.step()
    return quiet, ledger.bytes_sent(), ledger.bytes_received()


def test_the_link_of_the_server_carries_everything():
    size, n = 4 * 16 * 4, 4
    ranks = run_ranks(bytes_of_a_step, n, (0,))
    assert ranks == [(True, (n - 1) * size, (n - 1) * size)] + [(True, size, size)] * (n - 1)


def test_servers_on_all_ranks_share_the_load():
    """A rank serves S/N to N-1 others and pushes (N-1)/N S: an all-reduce's 2(N-1)/N S."""
    size, n = 4 * 16 * 4, 4
    each = 2 * (n - 1) * size // n
    assert run_ranks(bytes_of_a_step, n, (0, 1, 2, 3)) == [(True, each, each)] * n


def in_a_column(group):
    """Ranks (0, 2) and (1, 3): each column has a server of its own, its second rank."""
    column = Mesh(dp=2, tp=2).group("dp")
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    make = partial(torch.optim.SGD, lr=1.0)
    server = ParameterServer(weight, make, column, servers=(1,))
    weight(torch.full((1, 1), 1.0 + dist.get_rank())).sum().backward()
    server.step()
    return weight.weight.item()


def test_servers_are_group_ranks():
    assert run_ranks(in_a_column, 4) == [-2.0, -3.0, -2.0, -3.0]


def test_a_server_outside_the_group():
    with pytest.raises(RankError, match=r"servers \[2\] of a group of 2 ranks"):
        run_ranks(synchronous, 2, "sgd", (2,))


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))


def asynchronous(group, staleness_bound, num_gradients, failing_after=None):
    """Rank 0 serves; the others push gradients of 1. Rank 1 may fail on the way."""
    module = Weight()
    if dist.get_rank(group) == 0:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        staleness = serve(module.parameters(), optimizer, group, staleness_bound=staleness_bound)
        return module.value.item(), staleness
    seen = []
    try:
        with AsyncWorker(module.parameters(), group) as worker:
            for done in range(num_gradients):
                worker.pull()
                seen.append(module.value.item())
                if dist.get_rank(group) == 1 and done == failing_after:
                    raise ArithmeticError("rank 1 fails between pull and push")
                module.value.sum().backward()
                worker.push()
    except ArithmeticError:
        pass
    return seen


@pytest.mark.parametrize("staleness_bound", [0, 1, 2, 7])
def test_no_update_is_lost_and_none_is_too_stale(staleness_bound):
    """D14: 3 workers, 50 gradients of 1 each, lr 1."""
    (weight, staleness), *workers = run_ranks(asynchronous, 4, staleness_bound, 50)
    assert weight == -150.0
    assert len(staleness) == 150
    assert 0 <= min(staleness) <= max(staleness) <= staleness_bound
    for seen in workers:
        assert seen == sorted(seen, reverse=True), "a worker never sees older weights again"
        assert len(set(seen)) == 50


def overtaken(group):
    """Worker 2 pushes while worker 1 computes, and asks for more weights before worker 1 pushes."""
    module, rank = Weight(), dist.get_rank(group)
    if rank == 0:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        return serve(module.parameters(), optimizer, group, staleness_bound=1)
    with AsyncWorker(module.parameters(), group) as worker:
        if rank == 2:
            dist.recv(torch.empty(1), src=1)  # worker 1 has pulled
        for _ in range(rank):
            worker.pull()
            if rank == 1:
                dist.send(torch.ones(1), dst=2)
                dist.recv(torch.empty(1), src=2)  # worker 2 has pushed
            module.value.sum().backward()
            worker.push()
            if rank == 2 and module.value == 0:
                dist.send(torch.ones(1), dst=1)
    return module.value.item()


def test_weights_are_held_back_at_the_bound():
    """At version 1 worker 1 still has version 0: worker 2's second pull waits for its push."""
    assert run_ranks(overtaken, 3) == [[0, 1, 0], 0.0, -2.0]


def pulls_twice(group):
    module = Weight()
    if dist.get_rank(group) == 0:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        return serve(module.parameters(), optimizer, group, staleness_bound=0)
    with AsyncWorker(module.parameters(), group) as worker:
        worker.pull()
        worker.pull()
        module.value.sum().backward()
        worker.push()


def test_a_pull_without_a_push_holds_nobody_up():
    assert run_ranks(pulls_twice, 2, timeout=10.0)[0] == [0]


def test_one_worker_is_serial():
    (weight, staleness), seen = run_ranks(asynchronous, 2, 5, 10)
    assert (weight, staleness) == (-10.0, [0] * 10)
    assert seen == [-float(step) for step in range(10)]


@pytest.mark.parametrize("staleness_bound", [0, 2])
def test_a_worker_that_fails_does_not_block_the_others(staleness_bound):
    (weight, staleness), *workers = run_ranks(asynchronous, 4, staleness_bound, 20, 5)
    assert weight == -45.0
    assert max(staleness) <= staleness_bound
    assert [len(seen) for seen in workers] == [6, 20, 20]


def dies(group):
    module = Weight()
    if dist.get_rank(group) == 0:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        return serve(module.parameters(), optimizer, group, staleness_bound=1)
    with AsyncWorker(module.parameters(), group) as worker:
        worker.pull()
        if dist.get_rank(group) == 1:
            os._exit(9)
        module.value.sum().backward()
        worker.push()


def test_a_worker_that_is_killed_is_named():
    with pytest.raises(
        RankError, match=r"rank 1 of 3 failed first: ended without a result \(exit code 9\)"
    ):
        run_ranks(dies, 3)


def async_misuse(group, kind):
    module = Weight()
    if dist.get_rank(group) == 0:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        bound = -1 if kind == "bound" else 0
        return serve(module.parameters(), optimizer, group, staleness_bound=bound)
    with AsyncWorker(module.parameters(), group) as worker:
        worker.push()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bound", "staleness_bound is -1, the least is 0"),
        ("push", r"push\(\) without a pull\(\) before"),
    ],
)
def test_async_misuse(kind, message):
    with pytest.raises(RankError, match=message):
        run_ranks(async_misuse, 2, kind)
