"""What travels by value between a caller and its ranks, and what cannot: the promises of carry.py.

Each test sends something through run_ranks and compares it with what was sent.
"""

import os
import sys
import threading
import types
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def test_big_nested_and_empty_results():
    def results(group):
        big = torch.arange(2_000_000, dtype=torch.float32)  # 8 MB
        return [{"deep": (big, None)}, None, torch.empty(0, 3)][dist.get_rank(group)]

    nested, nothing, empty = run_ranks(results, 3)
    assert torch.equal(nested["deep"][0], torch.arange(2_000_000, dtype=torch.float32))
    assert nested["deep"][1] is None
    assert nothing is None
    assert empty.shape == (0, 3)


def test_only_what_a_view_shows_travels():
    def view(group, x):
        return x.untyped_storage().nbytes(), torch.ones(1000, 1000)[1:3, :5]

    arrived, (there, back) = 80, run_ranks(view, 1, torch.ones(100, 100)[:4, :5])[0]
    assert there == arrived
    assert back.untyped_storage().nbytes() == 40
    assert torch.equal(back, torch.ones(2, 5))


def test_a_transposed_tensor_keeps_its_strides():
    x = torch.arange(6.0).view(2, 3).t()
    assert run_ranks(lambda group, x: x.stride(), 1, x) == [(1, 3)]


def test_tensors_come_back_outside_their_graph_and_leaves_keep_their_flag():
    def results(group, weight):
        return weight.requires_grad, weight, weight * 2, torch.nn.Parameter(weight.detach())

    sent = torch.ones(2, requires_grad=True)
    flag, leaf, inner, parameter = run_ranks(results, 1, sent)[0]
    assert flag
    assert leaf.requires_grad
    assert not inner.requires_grad
    assert torch.equal(inner, torch.full((2,), 2.0))
    assert isinstance(parameter, torch.nn.Parameter)


def test_a_class_of_the_test_comes_back_as_itself():
    class Local:
        def __init__(self, rank):
            self.rank = rank

    pair, local = run_ranks(lambda group: (Pair(1, 2), Local(0)), 1)[0]
    assert pair == Pair(1, 2)
    assert type(local) is Local


def test_a_function_of_a_module_that_no_rank_can_import(monkeypatch):
    module = types.ModuleType("only_in_memory")
    exec("base = 4\ndef helper(): return base\ndef fn(group): return helper()", vars(module))
    monkeypatch.setitem(sys.modules, "only_in_memory", module)
    assert run_ranks(module.fn, 1) == [4]


def test_an_attribute_that_is_called_like_a_module_of_torch():
    """`ledger.ops` beside `torch`: cloudpickle looks for torch.ops, which plain pickle refuses."""

    def count(group):
        with CommLedger() as ledger:
            dist.all_reduce(torch.ones(1), group=group)
        return len(ledger.ops)

    assert run_ranks(count, 2) == [1, 1]


def test_what_cannot_come_back_is_an_error_of_its_rank():
    def lock(group):
        return {"held": threading.Lock()} if dist.get_rank(group) else None

    with pytest.raises(RankError, match=r"rank 1 of 2 (.|\n)*returned dict (.|\n)*lock") as caught:
        run_ranks(lock, 2)
    assert caught.value.rank == 1


def test_what_cannot_be_carried_over_is_named():
    lock = threading.Lock()

    def closes_over(group):
        return lock

    with pytest.raises(ValueError, match=r"closes_over.*'lock' is a _thread\.lock(.|\n)*inside"):
        run_ranks(closes_over, 2)
    with (
        open(os.devnull, "a") as file,
        pytest.raises(ValueError, match=r"argument 1 is a .*TextIO"),
    ):
        run_ranks(print, 2, 5, file)

    def passes_a_group(group):
        run_ranks(print, 2, group)

    with pytest.raises(RankError, match=r"argument 0 is a .*ProcessGroup"):
        run_ranks(passes_a_group, 1)
