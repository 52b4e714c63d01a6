"""NaiveDataParallel and BucketedDataParallel: what is sent, when, and what misuse says.

Promised: S bytes of trained parameters cost 2(N-1)/N S a step and nothing else; whole parameters in
as few messages as the bucket size allows, the first before backward ends; silence in no_sync().
Oracle: the ledger, and arithmetic.
"""

from contextlib import nullcontext
from itertools import pairwise
from math import ceil

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import RankError, RankTimeout, run_ranks
from labkit.measure.events import Compute
from labkit.measure.fabric import Fabric, replay
from labkit.measure.hook import subscribed
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.parallel.data import BucketedDataParallel, NaiveDataParallel

SIZES = (3, 5, 7, 1, 41, 3)  # widths of a chain of linear layers


def chain(dtype=torch.float64):
    layers = [nn.Linear(a, b) for a, b in pairwise(SIZES)]
    return nn.Sequential(*layers).to(dtype)


def trained(module):
    return [p for p in module.parameters() if p.requires_grad]


def gradient_bytes(module):
    return sum(p.nbytes for p in trained(module))


def one_step(group, bucket_bytes, freeze):
    module = chain()
    module[1].requires_grad_(not freeze)
    model = BucketedDataParallel(module, group, bucket_bytes=bucket_bytes)
    with CommLedger() as ledger:
        model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        model.finish()
    return ledger.ops, gradient_bytes(module), max(p.nbytes for p in trained(module))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 400, 10**6])
def test_number_and_bytes_of_messages(bucket_bytes, freeze):
    for ops, size, largest in run_ranks(one_step, 4, bucket_bytes, freeze):
        assert {call.operation for call in ops} == {"all_reduce"}
        assert sum(call.payload_bytes for call in ops) == size, "frozen parameters cost nothing"
        assert sum(call.bytes_sent for call in ops) == pytest.approx(2 * 3 / 4 * size, abs=2 * 12)
        assert (
            ceil(size / (bucket_bytes + largest)) <= len(ops) <= 2 * ceil(size / bucket_bytes) + 1
        )


def test_the_bucket_size_counts():
    ops, size, _ = run_ranks(one_step, 2, 1000, False)[0]
    num_tensors = 2 * (len(SIZES) - 1)
    assert 2 * ceil(size / 1000) + 1 < num_tensors, "else one call a tensor would pass"
    assert 1 < len(ops) < num_tensors


def naive_step(group, num_tokens):
    model = NaiveDataParallel(chain(), group)
    with CommLedger() as ledger:
        model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        silent = ledger.count() == 0
        model.finish(num_tokens)
    return silent, [call.payload_bytes for call in ledger.ops], [p.nbytes for p in trained(model)]


@pytest.mark.parametrize("num_tokens", [None, 2])
def test_the_naive_one_sends_a_message_a_parameter(num_tokens):
    for silent, payloads, sizes in run_ranks(naive_step, 2, num_tokens):
        assert silent
        assert payloads == sizes + [8] * (num_tokens is not None)


def in_time(group):
    """Gradients by number and messages by name, in the order in which they happened."""
    module, happened = chain(), []
    for index, parameter in enumerate(module.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, i=index: happened.append(i))
    model = BucketedDataParallel(module, group, bucket_bytes=100)
    with subscribed(lambda call: happened.append("async" if call.asynchronous else "blocking")):
        model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        in_backward = list(happened)
        model.finish()
    return in_backward, happened


def test_buckets_leave_while_backward_still_runs():
    for in_backward, happened in run_ranks(in_time, 2):
        assert in_backward[:2] == [9, "async"], "the last bias fills the first bucket"
        assert in_backward.count("async") > 3
        assert happened == in_backward, "nothing was left for finish()"


def silent_micro_batches(group):
    model = BucketedDataParallel(chain(), group, bucket_bytes=100)
    x = torch.ones(2, 3, dtype=torch.float64)
    with CommLedger() as ledger:
        with model.no_sync():
            model(x).sum().backward()
            model(x).sum().backward()
            with model.no_sync():  # nested
                model(x).sum().backward()
            model(x).sum().backward()
        quiet = ledger.count()
        with pytest.raises(KeyError), model.no_sync():
            raise KeyError
        model(x).sum().backward()
        loud = ledger.count()
        model.finish()
    return quiet, loud, ledger.bytes_sent(), gradient_bytes(model)


def test_no_sync_is_silent_and_ends_even_by_an_error():
    for quiet, loud, sent, size in run_ranks(silent_micro_batches, 2):
        assert quiet == 0
        assert loud > 0
        assert sent == pytest.approx(size, abs=40)


def finish_after_silence(group):
    model = BucketedDataParallel(nn.Linear(2, 1, bias=False).double(), group)
    with model.no_sync():
        model(torch.full((1, 2), 2.0 * dist.get_rank()).double()).sum().backward()
    model.finish()
    return model.module.weight.grad.tolist()


def test_finish_sends_what_backward_did_not():
    assert run_ranks(finish_after_silence, 2) == [[[1.0, 1.0]]] * 2


class TwoOrders(nn.Module):
    """Each rank uses the layers in its own order."""

    def __init__(self, rank):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.order = [2, 0, 3, 1] if rank else [0, 1, 2, 3]

    def forward(self, x):
        for i in self.order:
            x = self.layers[i](x)
        return x


def different_orders(group):
    torch.manual_seed(0)
    module = TwoOrders(dist.get_rank(group))
    model = BucketedDataParallel(module, group, bucket_bytes=1)
    with CommLedger() as ledger:
        model(torch.ones(2, 3)).sum().backward()
        local = [p.grad for p in module.parameters()]
        model.finish()
    return [call.shapes for call in ledger.ops], local, [p.grad for p in module.parameters()]


def test_ranks_that_finish_gradients_in_different_orders():
    (shapes, _, ours), (others, _, theirs) = run_ranks(different_orders, 2)
    assert shapes == others
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def uneven_batches(group):
    model = BucketedDataParallel(nn.Linear(1, 1), group)
    for _ in range(3 - dist.get_rank(group)):
        model(torch.ones(1, 1)).sum().backward()
        model.finish()


def test_a_rank_with_fewer_batches_is_named():
    """D4: rank 1 leaves after 2 of 3 batches."""
    with pytest.raises(RankError, match=r"all_reduce\(.*rank 1 ended and never issued its part"):
        run_ranks(uneven_batches, 2, debug=True)
    with pytest.raises(RankTimeout, match="rank 1: has returned"):
        run_ranks(uneven_batches, 2, timeout=0.5)


def out_of_batches(group):
    model = BucketedDataParallel(nn.Linear(1, 1, bias=False), group)
    found = []
    for step in range(3):
        has_batch = step < 3 - dist.get_rank(group)
        if has_batch:
            model(torch.full((2, 1), 1.0 + dist.get_rank(group))).sum().backward()
        model.finish(num_tokens=2 * has_batch)
        found.append(model.module.weight.grad.item())
        model.zero_grad()
    return found


def test_a_rank_with_fewer_batches_may_join_without_any():
    assert run_ranks(out_of_batches, 2, debug=True) == [[1.5, 1.5, 1.0]] * 2


def misuse(group, kind):
    module = nn.Linear(1, 1)
    if kind == "unfrozen":
        module.bias.requires_grad_(False)
    model = BucketedDataParallel(module, group, bucket_bytes=0 if kind == "bucket" else 1)
    x = torch.ones(1, 1)
    if kind == "twice":
        model(x).sum().backward()
        model(x).sum().backward()
    if kind == "inside":
        with model.no_sync():
            model(x).sum().backward()
            model.finish()
    if kind == "unfrozen":
        module.bias.requires_grad_(True)
        model(x).sum().backward()
        model.finish()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("twice", r"call finish\(\) after each backward"),
        ("inside", r"finish\(\) inside no_sync\(\)"),
        ("unfrozen", "2 parameters need gradients, 1 did when wrapped"),
        ("bucket", "bucket_bytes is 0, the least is 1"),
    ],
)
def test_misuse(kind, message):
    with pytest.raises(RankError, match=message):
        run_ranks(misuse, 1, kind)


def old_gradients(group):
    """Gradients are new tensors: a reference from before finish keeps this rank's own."""
    model = BucketedDataParallel(nn.Linear(2, 1, bias=False), group)
    with model.no_sync():
        model(torch.full((1, 2), float(dist.get_rank(group)))).sum().backward()
    own = model.module.weight.grad
    model.finish()
    averaged = model.module.weight.grad
    model.zero_grad()
    model(torch.full((1, 2), 7.0)).sum().backward()
    model.finish()
    return own, averaged


def test_gradients_of_another_step_are_left_alone():
    for rank, (own, averaged) in enumerate(run_ranks(old_gradients, 2)):
        assert own.tolist() == [[rank, rank]]
        assert averaged.tolist() == [[0.5, 0.5]]


def logged(group, bucket_bytes, overlapped):
    module = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
    model = BucketedDataParallel(module, group, bucket_bytes=bucket_bytes)
    x = torch.ones(16, 64)
    with EventLog() as log:
        with nullcontext() if overlapped else model.no_sync():
            model(x).sum().backward()
        model.finish()
    return log.events


def virtual_step_s(bucket_bytes, overlapped):
    """On links where the gradients take as long as the arithmetic, 1 s each, and no alpha."""
    logs = run_ranks(logged, 2, bucket_bytes, overlapped)
    flops = sum(event.flops for event in logs[0] if isinstance(event, Compute))
    return replay(logs, Fabric(alpha=0, beta=1 / (8 * 64 * 64 * 4), flops=flops)).step_s


def test_small_buckets_hide_what_one_large_bucket_shows():
    """Virtual time. Backward is 15 of 23 products, all but the last message fit into it."""
    sequential = virtual_step_s(10**6, False)
    assert sequential == pytest.approx(2.0)
    assert virtual_step_s(10**6, True) == pytest.approx(sequential), "one bucket: no gain"
    assert virtual_step_s(64 * 64 * 4, True) < 0.75 * sequential
