"""Loans end before bytes are counted, and nobody waits for ever.

Oracle: a storage's own weak reference, right after gloo's all-reduce; and a borrower made here, a
parameters whose .grad are further references to a tensor, as a worker's would be.
"""

import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.launch import run_ranks
from labkit.measure import lending
from labkit.measure.hook import _alone
from labkit.measure.lending import Loans


class Lending(TorchDispatchMode):
    """Lends what every call is given, and settles before anything else runs."""

    def __init__(self, loans):
        super().__init__()
        self.loans = loans

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.loans.settle(tree_leaves((args, kwargs)))
        if func.namespace == "c10d":
            self.loans.lend(x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        return func(*args, **(kwargs or {}))


def late_storages(group, num_calls):
    late = 0
    with Loans() as loans, Lending(loans):
        for _ in range(num_calls):
            x = torch.ones(1000)
            storage = weakref.ref(x.untyped_storage())
            dist.all_reduce(x, group=group)
            del x
            torch.ones(1)  # what a meter would look at
            late += storage() is not None
    return late


def test_gloos_worker_has_let_go_when_the_next_tensor_is_counted():
    # Without settle(), about a tenth of the storages are still there.
    assert run_ranks(late_storages, 2, 200) == [0, 0]


class Borrower:
    """Has two references to a tensor, as a worker has to what it writes into."""

    def __init__(self, x):
        self.parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        for parameter in self.parameters:
            parameter.grad = x

    def let_go(self):
        for parameter in self.parameters:
            parameter.grad = None


@pytest.fixture
def borrowed(monkeypatch):
    """Loans with a call that has been waited for; and the one who still has its tensor."""
    monkeypatch.setattr(lending, "OF_THE_CALL", 0)  # there is no dispatch mode around it
    x = torch.ones(3)
    with Loans() as loans:
        loans.lend([x])
        _alone().allreduce([torch.ones(3)]).wait()
        yield loans, Borrower(x)


def test_settle_returns_when_the_borrower_lets_go(borrowed):
    loans, borrower = borrowed
    timer = threading.Timer(0.03, borrower.let_go)
    timer.start()
    loans.settle()
    assert borrower.parameters[0].grad is None
    timer.join()


def test_who_keeps_a_tensor_for_good_is_waited_for_once_and_not_long(borrowed, monkeypatch):
    loans, borrower = borrowed
    monkeypatch.setattr(lending, "PATIENCE_S", 0.05)
    start_s = time.perf_counter()
    loans.settle()
    assert time.perf_counter() - start_s >= 0.05
    assert borrower.parameters[0].grad is not None
    assert not loans.are_due


def test_a_tensor_that_comes_next_is_asked_about_later(borrowed, monkeypatch):
    loans, borrower = borrowed
    monkeypatch.setattr(lending, "PATIENCE_S", 60.0)
    loans.settle([borrower.parameters[0].grad])
    assert loans.are_due
    borrower.let_go()
    loans.settle()
    assert not loans.are_due
