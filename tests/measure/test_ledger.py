"""The ledger counts every call of a program, whoever issued it, with the convention's bytes.

Oracle: formulas in exact fractions over groups of 1 to 5 real ranks; for torch's own strategies the
bytes of their parameters. A group's bytes sum exactly, even where N does not divide them.
"""

import pickle
import threading
import warnings
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tensor import distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from labkit.launch import run_ranks
from labkit.measure.hook import subscribed
from labkit.measure.ledger import CommLedger

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def every_operation(group, length):
    """One of each on the group, for tensors of `length` bytes, or N pieces of that."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    last = dist.get_global_rank(group, n - 1)
    x, pieces = torch.ones(length, dtype=torch.int8), [torch.ones(length, dtype=torch.int8)] * n
    dist.all_reduce(x, group=group)
    dist.reduce_scatter_tensor(x.clone(), torch.cat(pieces), group=group)
    dist.all_gather(pieces, x, group=group)
    dist.broadcast(x, last, group)
    dist.reduce(x, last, group=group)
    dist.gather(x, pieces if me == n - 1 else None, last, group)
    dist.scatter(x, pieces if me == n - 1 else None, last, group)
    dist.barrier(group)


def in_subgroups(group, length):
    told = []
    for n in range(1, 6):
        subgroup = dist.new_group(list(range(n)), group_desc=f"first{n}")
        with CommLedger() as ledger:
            if dist.get_rank() < n:
                every_operation(subgroup, length)
        told.append([(call.operation, call.bytes_sent, call.bytes_received) for call in ledger.ops])
    return told


@pytest.fixture(scope="module")
def of_groups():
    """length → what each rank's ledger said, for groups of 1 to 5."""
    return {length: run_ranks(in_subgroups, 5, length) for length in (1, 7)}


def wanted(n, length):
    """Bytes sent by (operation, is the root), and by the whole group."""
    return {
        "all_reduce": [Fraction(2 * (n - 1) * length, n)] * 2,
        "reduce_scatter": [(n - 1) * length] * 2,
        "all_gather": [(n - 1) * length] * 2,
        "broadcast": [0, (n - 1) * length],
        "reduce": [length, 0],
        "gather": [length, 0],
        "scatter": [0, (n - 1) * length],
        "barrier": [0, 0],
    }


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("n", range(1, 6))
def test_bytes_of_every_operation(of_groups, n, length):
    by_rank = [of_groups[length][rank][n - 1] for rank in range(n)]
    for place, (operation, (others, root)) in enumerate(wanted(n, length).items()):
        calls = [ops[place] for ops in by_rank]
        assert {call[0] for call in calls} == {operation}
        for rank, (_, sent, _) in enumerate(calls):
            assert abs(sent - (root if rank == n - 1 else others)) < 2
        total = sum(sent for _, sent, _ in calls)
        assert total == (n - 1) * others + root
        assert total == sum(received for _, _, received in calls)
    assert all(not ranks[n - 1] for ranks in of_groups[length][n:])


def on_two(program):
    """Run a program on two ranks under a ledger; their ledgers' calls."""
    return run_ranks(_recorded, 2, program)


def _recorded(group, program):
    with CommLedger() as ledger:
        program(group)
    return ledger.ops


def summary(ops):
    """What most tests compare."""
    return [(call.operation, call.payload_bytes, call.bytes_sent) for call in ops]


def exchanges(group):
    rank, x = dist.get_rank(group), torch.ones(12)
    expects, sizes = ([3, 3], [3, 9]) if rank == 0 else ([9, 9], [3, 9])
    dist.all_to_all_single(torch.empty(sum(expects)), x, expects, sizes)
    dist.all_to_all_single(torch.empty(12), x)
    dist.all_to_all([torch.empty(2), torch.empty(2)], [torch.ones(2), torch.ones(2)])
    dist._functional_collectives.all_to_all_single(x, expects, sizes, group).clone()


def test_an_all_to_all_keeps_its_own_share():
    first, second = on_two(exchanges)
    assert [call.bytes_sent for call in first] == [36, 24, 8, 36]
    assert [call.bytes_received for call in first] == [12, 24, 8, 12]
    assert [call.bytes_sent for call in second] == [12, 24, 8, 12]
    assert [call.bytes_received for call in second] == [36, 24, 8, 36]
    assert {call.operation for call in first} == {"all_to_all"}


def both_names(group):
    x, shard, whole = torch.ones(4, dtype=torch.bfloat16), torch.ones(2), torch.ones(8)
    dist.all_gather_into_tensor(torch.empty(8, dtype=torch.bfloat16), x)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, torch.ones(4))
    dist.reduce_scatter_tensor(shard, torch.ones(4))
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(shard, torch.ones(4))
    dist.reduce_scatter(shard, [shard.clone(), shard.clone()])


def test_old_and_new_names_and_lists_are_one_operation():
    ops, _ = on_two(both_names)
    assert summary(ops) == [
        ("all_gather", 8, 8),
        ("all_gather", 16, 16),
        ("reduce_scatter", 16, 8),
        ("reduce_scatter", 16, 8),
        ("reduce_scatter", 16, 8),
    ]
    assert ops[0].dtype == torch.bfloat16


def messages(group):
    other, x = 1 - dist.get_rank(group), torch.ones(3)
    sends = dist.P2POp(dist.isend, x, other)
    receives = dist.P2POp(dist.irecv, torch.empty(3), other)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()
    dist.all_reduce(x, async_op=True).wait()


def test_messages_and_asynchronous_calls():
    for rank, ops in enumerate(on_two(messages)):
        assert summary(ops) == [("send", 12, 12), ("recv", 12, 0), ("all_reduce", 12, 12)]
        assert [call.peer for call in ops] == [1 - rank, 1 - rank, None]
        assert [call.bytes_received for call in ops] == [0, 12, 12]


def coalesced(group):
    with dist._coalescing_manager(group):
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3))
    functional = dist._functional_collectives
    for y in functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group):
        y.clone()
    functional.all_gather_tensor(torch.ones(2), 0, group).clone()


def test_coalesced_and_functional_calls_count_once():
    ops, _ = on_two(coalesced)
    assert summary(ops) == [("all_reduce", 20, 20), ("all_reduce", 20, 20), ("all_gather", 8, 8)]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total


def elsewhere(group):
    _Sum.apply(torch.ones(2, requires_grad=True)).sum().backward()
    thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),), name="helper")
    thread.start()
    thread.join()


def test_backward_and_other_threads_are_heard():
    ops, _ = on_two(elsewhere)
    assert summary(ops) == [("all_reduce", 8, 8), ("all_reduce", 12, 12)]
    assert ops[1].thread == "helper"


def net():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))


PARAMETERS_BYTES = 4 * 4 * (8 * 8 + 8)


def torch_ddp(group):
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0004)
    for _ in range(3):
        with CommLedger() as ledger:
            model(torch.ones(2, 8)).sum().backward()
    return ledger.count("all_reduce"), ledger.bytes_sent("all_reduce"), ledger.bytes_sent()


def test_ddp_sends_its_gradients_once():
    count, reduced, sent = run_ranks(torch_ddp, 2)[0]
    assert count > 1
    assert reduced == sent == PARAMETERS_BYTES  # 2(N−1)/N = 1


def torch_fsdp(group):
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)  # of the outermost module, torch keeps what forward gathered
    with CommLedger() as ledger:
        model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    return [(name, ledger.bytes_sent(name)) for name in ("all_gather", "reduce_scatter")]


def test_fsdp_gathers_parameters_and_scatters_gradients():
    gathered, scattered = run_ranks(torch_fsdp, 2)[0]
    # Forward and backward each gather every layer: N−1 times a half of it.
    assert gathered == ("all_gather", 2 * PARAMETERS_BYTES // 2)
    assert scattered == ("reduce_scatter", PARAMETERS_BYTES // 2)


def sharded_layers(group):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(net()[:2], mesh, plan)
    x = distribute_tensor(torch.ones(2, 8), mesh, [Shard(0)])
    model(torch.ones(2, 8)).sum().backward()
    x.redistribute(mesh, [Replicate()]).to_local().clone()


def test_dtensor_reduces_once_forward_and_gathers_to_replicate():
    ops, _ = on_two(sharded_layers)
    training = [entry for entry in summary(ops) if entry[0] not in ("scatter", "broadcast")]
    assert training == [("all_reduce", 64, 64), ("all_gather", 32, 32)]


def by_axis(group):
    dp = dist.new_group([0, 1], group_desc="dp")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))
    dist.all_reduce(torch.ones(2), group=dp)
    dist.all_reduce(torch.ones(4), group=dp)
    dist.all_reduce(torch.ones(8))
    dist.all_reduce(torch.ones(16), group=dist.new_group([0, 1]))
    dist.all_reduce(torch.ones(32), group=mesh.get_group("pp"))


def test_calls_are_told_apart_by_axis():
    ledger = CommLedger()
    ledger.ops = on_two(by_axis)[1]
    assert [call.axis for call in ledger.ops] == ["dp", "dp", "world", "ranks 0,1", "mesh_pp"]
    assert ledger.count("all_reduce", axis="dp") == 2
    assert ledger.bytes_sent(axis="dp") == 24
    assert ledger.bytes_received("all_reduce", "world") == 32


def test_a_fake_world_of_64_in_one_process():
    from torch._subclasses.fake_tensor import FakeTensorMode

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=64)
    try:
        with FakeTensorMode(), CommLedger() as ledger:
            x = torch.empty(640)
            dist.all_reduce(x)
            dist.all_gather_into_tensor(torch.empty(64 * 640), x)
            dist._functional_collectives.all_reduce(x, "sum", dist.group.WORLD).clone()
            dist.all_to_all_single(torch.empty(640), x)
            dist.send(x, 5)
    finally:
        dist.destroy_process_group()
    assert summary(ledger.ops) == [
        ("all_reduce", 2560, 5040),
        ("all_gather", 2560, 63 * 2560),
        ("all_reduce", 2560, 5040),
        ("all_to_all", 2560, 2520),
        ("send", 2560, 2560),
    ]
    assert ledger.ops[-1].peer == 5
    assert {len(call.ranks) for call in ledger.ops} == {64}


@pytest.fixture
def alone():
    """A world of one in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_ledgers_nest_and_stop_with_their_block(alone):
    inner = CommLedger()

    def fail():
        with inner:
            dist.barrier()
            raise KeyError

    with CommLedger() as outer:
        dist.all_reduce(torch.ones(1))
        with pytest.raises(KeyError):
            fail()
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    assert [call.operation for call in inner.ops] == ["barrier"]
    assert [call.operation for call in outer.ops] == ["all_reduce", "barrier", "all_reduce"]
    with subscribed(print):
        pass
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::barrier", "BackendSelect")


def test_a_ledger_may_be_opened_again_and_goes_on(alone):
    ledger = CommLedger()
    for _ in range(2):
        with ledger:
            dist.barrier()
    assert ledger.count("barrier") == 2


def test_calls_can_be_pickled(alone):
    with CommLedger() as ledger:
        dist.all_reduce(torch.ones(2, dtype=torch.bfloat16))
    assert pickle.loads(pickle.dumps(ledger.ops)) == ledger.ops


def test_the_table_is_plain_and_stable(alone):
    with warnings.catch_warnings(action="ignore"), CommLedger() as ledger:
        dist.all_reduce(torch.ones(1000))
        dist.broadcast(torch.ones(1, dtype=torch.int64), 0)
        dist.barrier()
    assert ledger.table().splitlines() == [
        "#  operation   axis   payload  dtype    sent  received",
        "0  all_reduce  world    4,000  float32     0         0",
        "1  broadcast   world        8  int64       0         0",
        "2  barrier     world        0              0         0",
    ]


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="no operation 'allreduce'; there are all_reduce, "):
        CommLedger().count("allreduce")
