"""The hook hears every call once, before it is sent; it goes away without a trace.

Oracle: what this file issues, and the dispatcher's own table of kernels. Worlds of one run in this
process; what needs a peer runs on two ranks.
"""

import threading
import time
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from labkit.launch import run_ranks
from labkit.measure import hook
from labkit.measure.hook import self_test, subscribe, subscribed, unsubscribe


@pytest.fixture
def alone():
    """A world of one in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def installed():
    name = "c10d::allreduce_"
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")


def test_this_torch_is_as_the_hook_expects():
    self_test()


def test_the_self_test_names_a_new_operator(monkeypatch):
    monkeypatch.delitem(hook.OPERATIONS, "c10d::gather_")
    with pytest.raises(
        RuntimeError, match=rf"torch {torch.__version__} .*c10d::gather_".replace("+", r"\+")
    ):
        self_test()


def test_the_self_test_names_a_lost_operator(monkeypatch):
    monkeypatch.setitem(hook.OPERATIONS, "c10d::scream_", "all_reduce")
    with pytest.raises(RuntimeError, match="has no c10d::scream_"):
        self_test()


def test_the_self_test_notices_silence(monkeypatch):
    monkeypatch.setattr(hook._HOOK, "_install", lambda: None)
    with pytest.raises(RuntimeError, match="c10d::allreduce_ was not heard"):
        self_test()


def test_kernels_come_with_the_first_subscriber_and_go_with_the_last():
    plain_wait = dist.Work.wait
    first, second = [], []
    assert not installed()
    subscribe(first.append)
    subscribe(second.append)
    unsubscribe(first.append)
    assert installed()
    unsubscribe(second.append)
    assert not installed()
    assert dist.Work.wait == plain_wait


def test_unsubscribing_a_stranger_is_an_error():
    with pytest.raises(RuntimeError, match="not subscribed"):
        unsubscribe(print)


def test_an_exception_in_the_block_ends_the_subscription():
    with pytest.raises(KeyError), subscribed(print):
        raise KeyError
    assert not installed()


def test_installation_is_cheap_enough_for_every_rank():
    times_s = []
    for _ in range(7):
        start = time.perf_counter()
        with subscribed(print):
            times_s.append(time.perf_counter() - start)
    assert median(times_s) < 0.010


def test_a_call_in_words(alone):
    heard = []
    with subscribed(heard.append):
        dist.all_reduce(torch.ones(2, 3), dist.ReduceOp.MAX)
        dist.barrier()
        dist.broadcast(torch.ones(1, dtype=torch.bfloat16), 0)
    lines = [str(call).partition(" at test_hook.py:")[0] for call in heard]
    assert lines == [
        "all_reduce(float32 [2, 3], max)",
        "barrier()",
        "broadcast(bfloat16 [1], root 0)",
    ]
    first = heard[0]
    assert (first.axis, first.ranks, first.rank, first.group_rank) == ("world", (0,), 0, 0)
    assert (first.dtype, first.reduce_op, first.peer) == (torch.float32, "max", None)
    assert first.thread == threading.current_thread().name
    assert [call.sequence for call in heard] == [first.sequence + i for i in range(3)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_callers_line_is_found_through_torch_and_autograd(alone):
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad)  # here: test 1
            return grad

    heard = []
    x = torch.ones(2, requires_grad=True)
    with subscribed(heard.append):
        Sum.apply(x).sum().backward()
        dist.all_gather_into_tensor(torch.empty(2), torch.ones(2))  # here: test 2
    with open(__file__) as file:
        marked = [
            i for i, text in enumerate(file, 1) if "# here: test" in text and "if" not in text
        ]
    assert [call.where for call in heard] == [f"test_hook.py:{number}" for number in marked]


def test_a_subscriber_that_raises_does_so_before_anything_is_sent():
    assert run_ranks(_refuse, 2) == [True, True]


def _refuse(group):
    def refuse(call):
        raise PermissionError(call.operation)

    x = torch.ones(2)
    with subscribed(refuse), pytest.raises(PermissionError, match="all_reduce"):
        dist.all_reduce(x)
    untouched = torch.equal(x, torch.ones(2))
    dist.all_reduce(x)  # had the first been sent, this one would meet it
    return untouched and torch.equal(x, torch.full((2,), 2.0))


def test_waits_are_heard_once_and_in_order(alone):
    told = []
    with subscribed(
        lambda call: told.append(("issued", call.operation)),
        lambda call: told.append(("waited", call.operation)),
    ):
        dist.all_reduce(torch.ones(1))
        slow = dist.all_gather([torch.empty(1)], torch.ones(1), async_op=True)
        fast = dist.broadcast(torch.ones(1), 0, async_op=True)
        fast.wait()
        slow.wait()
        slow.wait()
        y = functional.all_reduce(torch.ones(1), "sum", alone)
        (y + 1).sum()
    assert told == [
        ("issued", "all_reduce"),
        ("waited", "all_reduce"),
        ("issued", "all_gather"),
        ("issued", "broadcast"),
        ("waited", "broadcast"),
        ("waited", "all_gather"),
        ("issued", "all_reduce"),
        ("waited", "all_reduce"),
    ]


def test_blocking_messages_differ_from_asynchronous_ones():
    assert run_ranks(_messages, 2) == [
        [("send", False), ("send", True), ("recv", True)],
        [("recv", False), ("recv", True), ("send", True)],
    ]


def _messages(group):
    heard, x = [], torch.ones(1)
    rank = dist.get_rank(group)
    with subscribed(heard.append):
        (dist.recv if rank else dist.send)(x, 1 - rank)
        first = (dist.irecv if rank else dist.isend)(x, 1 - rank)
        second = (dist.isend if rank else dist.irecv)(x.clone(), 1 - rank)
        first.wait()
        second.wait()
    return [(call.operation, call.asynchronous) for call in heard]


def test_calls_from_cpp_are_marked(alone):
    heard = []
    with subscribed(heard.append):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        dist.all_reduce(torch.ones(1))
        model(torch.ones(1, 2)).sum().backward()
    assert [call.native for call in heard if call.operation == "all_reduce"][-2:] == [False, True]


def test_threads_may_come_and_go(alone):
    """Subscribing, leaving and calling at once: each block hears at least its own calls."""
    short = []

    def work():
        for _ in range(20):
            heard = []
            with subscribed(heard.append):
                for _ in range(3):
                    dist.all_reduce(torch.ones(1))
            me = threading.current_thread().name
            if sum(call.thread == me for call in heard) != 3:
                short.append(me)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not short
    with subscribed(print):
        pass
    assert not installed()
