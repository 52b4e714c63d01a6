"""copy_all_to: pitfall T8's remedy.

Promised: values unchanged, gradients summed over the group in one all-reduce, the same on every
rank; frozen tensors cost nothing, and the incoming gradients are left alone.
Oracle: the sum, in whole numbers.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.replicated import copy_all_to
from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger


def leaves(*frozen):
    shapes = [(3,), (2, 5), (1, 1)]
    return [
        torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64)
        .view(shape)
        .requires_grad_(i not in frozen)
        for i, shape in enumerate(shapes)
    ]


def sum_gradients(group, frozen):
    tensors, rank = leaves(*frozen), dist.get_rank(group)
    with CommLedger() as ledger:
        copies = copy_all_to(tensors, group)
        same = all(torch.equal(a, b) for a, b in zip(copies, tensors, strict=True))
        grads = [torch.full_like(t, 1.0 + rank) for t in tensors]
        trained = [i for i, t in enumerate(tensors) if t.requires_grad]
        if trained:
            torch.autograd.backward([copies[i] for i in trained], [grads[i] for i in trained])
    untouched = all(bool((g == 1.0 + rank).all()) for g in grads)
    return same, untouched, [t.grad for t in tensors], ledger.count(), ledger.count("all_reduce")


@pytest.mark.parametrize("frozen", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_one_message_sums_all_gradients(world_size, frozen):
    total = world_size * (world_size + 1) / 2
    for same, untouched, grads, calls, reduces in run_ranks(sum_gradients, world_size, frozen):
        assert same
        assert untouched
        assert calls == reduces == (len(frozen) < 3)
        for i, grad in enumerate(grads):
            assert grad is None if i in frozen else bool((grad == total).all())


def test_nothing_to_copy():
    assert run_ranks(lambda group: copy_all_to([], group), 2) == [(), ()]


def mixed(group):
    copy_all_to([torch.ones(2, requires_grad=True), torch.ones(2).double().requires_grad_()], group)


def test_two_dtypes_are_refused():
    with pytest.raises(RankError, match=r"float32.*float64"):
        run_ranks(mixed, 2)
