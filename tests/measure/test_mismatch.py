"""Wrong programs get an error that names ranks and lines, soon; right programs get none.

Oracle: the lines marked "# [name]" in this file. A wrong call is stopped before it is issued, so
gloo neither hangs, mixes numbers nor aborts. Right programs include some that look suspicious.
"""

import re
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from labkit.launch import run_ranks
from labkit.measure.log import EventLog
from labkit.measure.mismatch import CollectiveMismatch, detect_mismatches

PROMPT_S = 2.0
SOURCE = Path(__file__).read_text().splitlines()


def line(name):
    """Where the line marked "# [name]" stands."""
    (number,) = (i for i, text in enumerate(SOURCE, 1) if text.endswith(f"# [{name}]"))
    return f"test_mismatch.py:{number}"


def watched(group, program, folder):
    """What the detector said on this rank, and after how many seconds."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    store = dist.FileStore(f"{folder}/store", size)
    dist.barrier(group)
    start = time.monotonic()
    try:
        with detect_mismatches(store, rank, size, timeout=20.0):
            program(group, rank)
    except CollectiveMismatch as error:
        return str(error), time.monotonic() - start
    return None, time.monotonic() - start


def operation(group, rank):
    x = torch.ones(4)
    if rank == 0:
        dist.all_reduce(x, group=group)  # [operation 0]
    else:
        dist.all_gather([torch.empty(4), torch.empty(4)], x, group=group)  # [operation 1]


def shape(group, rank):
    dist.all_reduce(torch.ones(4 - rank), group=group)  # [shape 0]


def dtype(group, rank):
    dist.all_reduce(torch.ones(4, dtype=(torch.float32, torch.int32)[rank]))  # [dtype 0]


def reduction(group, rank):
    if rank == 0:
        dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX, group)  # [reduction 0]
    else:
        dist.all_reduce(torch.ones(4), group=group)  # [reduction 1]


def root(group, rank):
    dist.broadcast(torch.ones(4), rank, group)  # [root 0]


def order(group, rank):
    x = torch.ones(4)
    steps = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0)]  # [order 0]
    for step in steps if rank == 0 else steps[::-1]:
        step()


def asynchronous(group, rank):
    if rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)  # [asynchronous 0]
        work.wait()
    else:
        time.sleep(0.1)
        dist.barrier()  # [asynchronous 1]


def other_group(group, rank):
    twin = dist.new_group([0, 1], group_desc="twin")
    if rank == 0:
        dist.all_reduce(torch.ones(4), group=twin)  # [other_group 0]
    else:
        dist.all_reduce(torch.ones(4), group=group)  # [other_group 1]


def members(group, rank):
    pair = dist.new_group([0, 1], group_desc="pair")
    if rank == 1:  # as if it had passed another list: torch names groups by counting them
        dist.distributed_c10d._world.pg_group_ranks[pair] = {0: 0, 1: 1, 2: 2}
    dist.all_reduce(torch.ones(4), group=pair)  # [members 0]


def exchange(group, rank):
    sizes = [[1, 2], [3, 1]][rank]
    dist.all_to_all_single(torch.empty(4), torch.ones(3 + rank), [1, 3], sizes)  # [exchange 0]


def pieces(group, rank):
    whole = [torch.ones(2), torch.ones(3)] if rank == 0 else None
    dist.scatter(torch.empty(2), whole, 0)  # [pieces 0]


def small_buffer(group, rank):
    if rank == 0:
        dist.send(torch.ones(4), 1)  # [small_buffer 0]
    else:
        dist.recv(torch.empty(2), 0)  # [small_buffer 1]


def message_dtype(group, rank):
    if rank == 0:
        dist.isend(torch.ones(4), 1).wait()  # [message_dtype 0]
    else:
        dist.irecv(torch.empty(2, dtype=torch.float64), 0).wait()  # [message_dtype 1]


def send_first(group, rank):
    dist.send(torch.ones(1), 1 - rank)  # [send_first 0]
    dist.recv(torch.ones(1), 1 - rank)


def recv_first(group, rank):
    dist.irecv(torch.ones(1), 1 - rank).wait()  # [recv_first 0]
    dist.send(torch.ones(1), 1 - rank)


def tag(group, rank):
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=5)  # [tag 0]
    else:
        dist.recv(torch.ones(1), 0, tag=6)  # [tag 1]


def message_against_collective(group, rank):
    if rank == 0:
        dist.send(torch.ones(1), 1)  # [message_against_collective 0]
    else:
        dist.barrier()  # [message_against_collective 1]


TOGETHER = "must issue the same operation in the same order"
CIRCLE = "these ranks wait for each other"
BOTH_BLAMED = [
    (operation, TOGETHER),
    (shape, "must pass the same shape"),
    (dtype, "must pass the same dtype"),
    (reduction, "must reduce with the same operator, not max and sum"),
    (root, "must name the same root"),
    (order, TOGETHER),
    (asynchronous, TOGETHER),
    (other_group, CIRCLE),
    (members, r"name the same members, not \[0, 1\] and \[0, 1, 2\]"),
    (exchange, "rank 0 sends 8 bytes to rank 1, which expects 4"),
    (pieces, "must pass the same shape"),
    (small_buffer, "must have the same shape"),
    (message_dtype, "must have the same dtype"),
    (send_first, CIRCLE),
    (recv_first, CIRCLE),
    (tag, CIRCLE),
    (message_against_collective, CIRCLE),
]


@pytest.mark.parametrize(("program", "rule"), BOTH_BLAMED, ids=lambda v: getattr(v, "__name__", ""))
def test_both_ranks_are_told_who_did_what_where(program, rule, tmp_path):
    name = program.__name__
    first = line(f"{name} 0")
    second = line(f"{name} 1") if f"# [{name} 1]" in "\n".join(SOURCE) else first
    for text, seconds in run_ranks(watched, 2, program, str(tmp_path), debug=False):
        assert text is not None
        assert re.search(f"rank 0: .* at {first}.*; rank 1: .* at {second}.*{rule}", text), text
        assert seconds < PROMPT_S


def goes_on(group, program, folder):
    assert watched(group, program, folder)[0]
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    return x


@pytest.mark.parametrize("program", [operation, shape, small_buffer, send_first])
def test_nothing_of_the_wrong_call_was_sent(program, tmp_path):
    for x in run_ranks(goes_on, 2, program, str(tmp_path), debug=False):
        assert torch.equal(x, torch.full((3,), 2.0))


def extra(group, rank):
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        dist.all_reduce(torch.ones(4))  # [extra 0]


def unanswered(group, rank):
    if rank == 0:
        dist.send(torch.ones(1), 1)  # [unanswered 0]


def unfed(group, rank):
    if rank == 0:
        dist.recv(torch.ones(1), 1)  # [unfed 0]


def batched(group, rank):
    if rank == 0:
        ops = [dist.P2POp(kind, torch.ones(1), 1) for kind in (dist.isend, dist.irecv)]
        for work in dist.batch_isend_irecv(ops):  # [batched 0]
            work.wait()


@pytest.mark.parametrize("program", [extra, unanswered, unfed, batched])
def test_a_partner_that_has_left_is_named(program, tmp_path):
    told, silent = run_ranks(watched, 2, program, str(tmp_path), debug=False)
    where = line(f"{program.__name__} 0")
    assert re.search(f"rank 0: .* at {where}: rank 1 ended and never issued its part", told[0])
    assert told[1] < PROMPT_S
    assert silent[0] is None


def fails(group, rank):
    if rank == 1:
        raise CollectiveMismatch("rank 1 broke")
    dist.barrier()


def test_the_reason_of_a_failed_partner_is_passed_on(tmp_path):
    (text, seconds), _ = run_ranks(watched, 2, fails, str(tmp_path), debug=False)
    assert "rank 1 ended with CollectiveMismatch: rank 1 broke" in text
    assert seconds < PROMPT_S


def odd_one_out(group, rank):
    x = torch.ones(4)
    if rank == 2:
        dist.broadcast(x, 0)  # [odd_one_out 2]
    else:
        dist.all_reduce(x)


def test_every_rank_of_the_group_is_told(tmp_path):
    for text, seconds in run_ranks(watched, 4, odd_one_out, str(tmp_path), debug=False):
        assert f"rank 2: broadcast(float32 [4], root 0) at {line('odd_one_out 2')}" in text
        assert seconds < PROMPT_S


def ring_of_sends(group, rank):
    dist.send(torch.ones(1), (rank + 1) % 3)  # [ring_of_sends 0]


def test_a_circle_of_three(tmp_path):
    for text, seconds in run_ranks(watched, 3, ring_of_sends, str(tmp_path), debug=False):
        assert len(re.findall(line("ring_of_sends 0"), text)) == 3
        assert seconds < PROMPT_S


def wrong_world(group, folder):
    rank = dist.get_rank(group)
    store = dist.FileStore(f"{folder}/store", 2)
    with pytest.raises(CollectiveMismatch, match=r"rank [01] counts . ranks, rank [01] counts ."):
        with detect_mismatches(store, rank, 2 + rank):
            dist.barrier(group)


def test_ranks_that_disagree_on_the_world(tmp_path):
    run_ranks(wrong_world, 2, str(tmp_path), debug=False)


def late(group, folder):
    store = dist.FileStore(f"{folder}/store", 2)
    with detect_mismatches(store, dist.get_rank(group), 2, timeout=0.3):
        if dist.get_rank(group) == 0:
            with pytest.raises(CollectiveMismatch, match=r"no sign of rank 1 within 0.3 s"):
                dist.barrier(group)
        else:
            time.sleep(0.6)


def test_a_partner_that_does_not_come_is_named_after_the_timeout(tmp_path):
    run_ranks(late, 2, str(tmp_path), debug=False)


def through_tcp(group, program):
    rank = dist.get_rank(group)
    port = [None]
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=10), False)
        port = [server.port]
    dist.broadcast_object_list(port, 0)
    store = server if rank == 0 else dist.TCPStore("127.0.0.1", port[0], 2, False)
    with pytest.raises(CollectiveMismatch, match=TOGETHER), detect_mismatches(store, rank, 2):
        program(group, rank)
    dist.barrier(group)  # the server must outlive its clients


def test_a_tcp_store_serves_as_well():
    run_ranks(through_tcp, 2, operation, debug=False)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))


def ddp(group, rank):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0003)
    for _ in range(3):
        model(torch.ones(2, 8) + rank).sum().backward()


def fsdp(group, rank):
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(2):
        model(torch.ones(2, 8) + rank).sum().backward()


def tensor_parallel(group, rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(net(), mesh, plan)
    model(torch.ones(2, 8)).sum().backward()


def disjoint_groups(group, rank):
    pair, single = dist.new_group([0]), dist.new_group([1])
    mine = (pair, single)[rank]
    for _ in range(1 + rank):  # each group counts for itself
        dist.all_reduce(torch.ones(2), group=mine)
    dist.all_reduce(torch.ones(2))


def overlapped(group, rank):
    x = torch.ones(4)
    if rank == 0:  # legal, though rank 1 comes to the all-reduce only after this message
        work = dist.all_reduce(x, async_op=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        work = dist.all_reduce(x, async_op=True)
    work.wait()


def uneven_exchange(group, rank):
    sizes = [[1, 2], [3, 0]]
    expects = [row[rank] for row in sizes]
    x = torch.ones(sum(sizes[rank]), 2)
    dist.all_to_all_single(torch.empty(sum(expects), 2), x, expects, sizes[rank])
    dist.all_to_all([torch.empty(2), torch.empty(2)], [torch.ones(2), torch.ones(2)])


def rooted(group, rank):
    x, parts = torch.ones(4), [torch.empty(4), torch.empty(4)]
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.gather(x, parts if rank == 0 else None, 0)
    dist.scatter(x, parts if rank == 1 else None, 1)
    dist.broadcast_object_list([rank], 0)
    dist.all_gather_object([None, None], "x" * (1 + rank))


def slow(group, rank):
    if rank == 1:
        time.sleep(1.0)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        time.sleep(0.3)
        dist.recv(torch.empty(4), 0)
    else:
        dist.send(torch.ones(4), 1)


def ring(group, rank):
    other = 1 - rank
    for _ in range(3):
        ops = [
            dist.P2POp(dist.isend, torch.ones(4), other),
            dist.P2POp(dist.irecv, torch.empty(4), other),
            dist.P2POp(dist.irecv, torch.empty(2, 1), other, tag=1),
            dist.P2POp(dist.isend, torch.ones(2), other, tag=1),  # flat into two dimensions
        ]
        for work in dist.batch_isend_irecv(ops if rank == 0 else ops[::-1]):
            work.wait()


def ring_under_a_flop_counter(group, rank):
    with FlopCounterMode(display=False), EventLog():  # their frames lie between call and hook
        ring(group, rank)


def anyone(group, rank):
    if rank == 0:
        dist.recv(torch.empty(2))
        dist.recv(torch.empty(2), 1)
    else:
        dist.send(torch.ones(2), 0)
        dist.send(torch.ones(2), 0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "program",
    [
        ddp,
        fsdp,
        tensor_parallel,
        disjoint_groups,
        overlapped,
        uneven_exchange,
        rooted,
        slow,
        ring,
        ring_under_a_flop_counter,
        anyone,
    ],
)
def test_no_false_alarm(program, tmp_path):
    for text, _ in run_ranks(watched, 2, program, str(tmp_path), debug=False):
        assert text is None
