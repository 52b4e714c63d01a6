"""EventLog: arithmetic and communication of a rank in the order in which they happened.

Oracle: FLOPs counted by hand, 2·m·n·k a matrix product, and the order of lines in the programs.
"""

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from labkit.launch import run_ranks
from labkit.measure.events import Compute, Launch, Mark, Wait
from labkit.measure.log import EventLog


@pytest.fixture
def alone():
    """A world of one in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def launch(number, operation, num_bytes, peer=None):
    return Launch(
        id=number, operation=operation, axis="world", ranks=(0,), bytes=num_bytes, peer=peer
    )


def test_overlap_and_merging(alone):
    a, b = torch.ones(2, 3), torch.ones(3, 5)
    with EventLog() as log:
        a @ b
        a @ b
        work = dist.all_reduce(torch.ones(4), async_op=True)
        a @ b
        work.wait()
        log.mark("rest")
        dist.broadcast(torch.ones(1), 0)
        a @ b
    assert log.events == [
        Compute(flops=120.0),
        launch(0, "all_reduce", 16),
        Compute(flops=60.0),
        Wait(id=0),
        Mark(name="rest"),
        launch(1, "broadcast", 4, peer=0),
        Wait(id=1),
        Compute(flops=60.0),
    ]


def test_nothing_between_two_events_is_no_event(alone):
    with EventLog() as log:
        log.mark("a")
        torch.ones(3) + 1
        log.mark("b")
    assert log.events == [Mark(name="a"), Mark(name="b")]


def test_backward_is_counted(alone):
    w = torch.ones(3, 5, requires_grad=True)
    x = torch.ones(2, 3, requires_grad=True)
    with EventLog() as log:
        loss = (x @ w).sum()
        log.mark("backward")
        loss.backward()
    assert log.events == [Compute(flops=60.0), Mark(name="backward"), Compute(flops=120.0)]


@pytest.mark.parametrize("backward", [False, True])
def test_attention_on_a_cpu_is_counted(alone, backward):
    batch, heads, queries, keys, width = 2, 3, 8, 16, 4
    q = torch.ones(batch, heads, queries, width, requires_grad=backward)
    k, v = (torch.ones(batch, heads, keys, width) for _ in range(2))
    with EventLog() as log:
        y = scaled_dot_product_attention(q, k, v)
        log.mark("done")
        if backward:
            y.sum().backward()
    product = 2 * batch * heads * queries * keys * width
    assert log.events[0] == Compute(flops=2.0 * product)
    # Backward makes the scores again, then two products for each of the two.
    assert log.events[2:] == ([Compute(flops=5.0 * product)] if backward else [])


def test_a_layer_without_autograd_is_counted(alone):
    with EventLog() as log, torch.no_grad():
        torch.nn.Linear(3, 5)(torch.ones(2, 3))
    assert log.events == [Compute(flops=60.0)]


def test_recomputed_arithmetic_counts_again(alone):
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 5)
    with EventLog() as log:
        checkpoint(torch.matmul, x, w, use_reentrant=False).sum().backward()
    assert log.events == [
        Compute(flops=60.0 + 60.0)
    ]  # torch stops before the product is made again
    with EventLog() as log:
        checkpoint(lambda: (x @ w).relu(), use_reentrant=False).sum().backward()
    assert log.events == [Compute(flops=2 * 60.0 + 60.0)]


def test_a_fake_world_is_counted():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        with FakeTensorMode(), EventLog() as log:
            dist.all_reduce(torch.empty(2, 3) @ torch.empty(3, 5))
    finally:
        dist.destroy_process_group()
    assert log.events == [Compute(flops=60.0), launch(0, "all_reduce", 40), Wait(id=0)]


def test_waits_refer_to_their_own_launch(alone):
    with EventLog() as log:
        works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 2, 3)]
        for work in reversed(works):
            work.wait()
    assert [event.id for event in log.events if isinstance(event, Wait)] == [2, 1, 0]


def test_wait_all_closes_what_is_open_once(alone):
    with EventLog() as log:
        first = dist.all_reduce(torch.ones(1), async_op=True)
        dist.all_reduce(torch.ones(1), async_op=True)
        first.wait()
        log.wait_all()
        log.wait_all()
    assert log.events[2:] == [Wait(id=0), Wait(id=1)]


def test_a_log_hears_no_wait_for_what_came_before_it(alone):
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with EventLog() as log:
        work.wait()
    assert log.events == []


def _ddp(group):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))
    model = DistributedDataParallel(model, bucket_cap_mb=0.0002)
    for _ in range(3):  # it rebuilds its buckets in step 2
        with EventLog() as log:
            loss = model(torch.ones(2, 8)).sum()
            log.mark("backward")
            loss.backward()
            log.wait_all()
    return log.events


def test_ddp_overlaps_and_waits_at_the_end():
    product = Compute(flops=2.0 * 2 * 8 * 8)
    for events in run_ranks(_ddp, 2):
        start = events.index(Mark(name="backward"))
        assert events[:start] == [Compute(flops=3 * product.flops)]
        rest = events[start + 1 :]
        assert [type(event) for event in rest[-3:]] == [Wait] * 3
        launches = [event for event in rest if isinstance(event, Launch)]
        assert [event.bytes for event in launches] == [256] * 3
        # A bucket goes out before the last product is done: that is the overlap.
        assert rest.index(launches[0]) < max(i for i, e in enumerate(rest) if type(e) is Compute)


def _sharded(group):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    model = parallelize_module(layers, mesh, plan)
    with EventLog() as log:
        model(torch.ones(2, 8)).sum()
    return log.events


def test_of_a_sharded_product_only_this_ranks_part_counts():
    for events in run_ranks(_sharded, 2):
        part = sum(event.flops for event in events if isinstance(event, Compute))
        assert part == 2 * 2 * (8 * 16 + 16 * 8) / 2
        assert [type(event) for event in events[1:3]] == [Launch, Wait]


def _messages(group):
    rank, x = dist.get_rank(group), torch.ones(3)
    with EventLog() as log:
        (dist.recv if rank else dist.send)(x, 1 - rank)
    return log.events


def test_messages_name_their_peer():
    for rank, events in enumerate(run_ranks(_messages, 2)):
        operation = ("send", "recv")[rank]
        assert events == [
            Launch(id=0, operation=operation, axis="world", ranks=(0, 1), bytes=12, peer=1 - rank),
            Wait(id=0),
        ]
