"""What context parallelism costs: the formulas against the ledger, the log and autograd.

Promised: bytes and exchanges forward and backward, FLOP of each rank and bytes kept for backward
are the formulas', for all variants and layouts; zigzag's work is equal, contiguous' is not; what is
kept shrinks as 1/cp, except the gather's K and V.
Oracle: measure.ledger, measure.log and measure.memory around a run. All compared for equality.
"""

from fractions import Fraction

import pytest
import torch

from labkit.cost.context import (
    ContextShape,
    chunk_pairs,
    context_flops,
    context_traffic,
    saved_bytes,
    slowest_share,
)
from labkit.launch import run_ranks
from labkit.measure.events import Compute
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.measure.memory import SavedActivations
from tests.parallel.context_cases import VARIANTS, Case, own_inputs

CASE = Case(3, 4, 2, 24)
CALLS = {"ring": "send", "gather": None, "heads": "all_to_all"}


def shape_of(case, cp, number_bytes=8):
    return ContextShape(
        batch_size=case.batch,
        num_heads=case.heads,
        num_kv_heads=case.kv_heads,
        seq_len=case.seq_len,
        head_dim=case.width,
        cp=cp,
        number_bytes=number_bytes,
    )


def flops(log):
    return sum(event.flops for event in log.events if isinstance(event, Compute))


def measured(group, variant, layout, causal=True, dtype=torch.float64):
    q, k, v, upstream = (x.detach().to(dtype) * 1 for x in own_inputs(group, CASE, layout))
    for x in (q, k, v):
        x.requires_grad_()
    found = []
    with SavedActivations() as saved, CommLedger() as ledger, EventLog() as log:
        out = VARIANTS[variant](q, k, v, group, causal=causal, layout=layout)
    found.append((ledger.count(CALLS[variant]), ledger.bytes_sent(), flops(log)))
    with CommLedger() as ledger, EventLog() as log:
        out.backward(upstream)
    found.append((ledger.count(CALLS[variant]), ledger.bytes_sent(), flops(log)))
    assert saved.live_bytes == 0
    return found, saved.bytes


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_ledger_log_and_memory_are_the_formulas(cp, variant, layout):
    shape = shape_of(CASE, cp)
    traffic = context_traffic(shape, variant)
    work = context_flops(shape, variant, layout)
    for rank, (found, kept) in enumerate(run_ranks(measured, cp, variant, layout)):
        for (calls, sent, done), told, expected in zip(found, traffic, work[rank], strict=True):
            assert (calls, sent) == (told.num_exchanges, told.bytes_sent)
            assert done == expected
        assert kept == saved_bytes(shape, variant)


def test_bfloat16_sends_its_gradient_sums_in_fp32():
    forward, backward = context_traffic(shape_of(CASE, 2, number_bytes=2), "ring")
    assert backward.bytes_sent == 3 * forward.bytes_sent
    for found, _ in run_ranks(measured, 2, "ring", "zigzag", True, torch.bfloat16):
        assert [sent for _, sent, _ in found] == [forward.bytes_sent, backward.bytes_sent]


def test_without_a_mask_both_layouts_are_equal():
    for layout in ("zigzag", "contiguous"):
        work = context_flops(shape_of(CASE, 2), "ring", layout, causal=False)
        found = run_ranks(measured, 2, "ring", layout, False)
        assert [tuple(done for _, _, done in each) for each, _ in found] == work
        assert work[0] == work[1]


@pytest.mark.parametrize("cp", [1, 2, 3, 4, 16])
def test_zigzag_shares_the_work_and_contiguous_does_not(cp):
    assert slowest_share(cp, "zigzag") == Fraction(1, cp)
    assert slowest_share(cp, "contiguous") == Fraction(2, cp + 1)
    counted = [sum(j <= i for i in (r, 2 * cp - 1 - r) for j in range(2 * cp)) for r in range(cp)]
    assert chunk_pairs(cp, "zigzag") == counted


@pytest.mark.parametrize("variant", ["ring", "heads"])
def test_what_is_kept_shrinks_as_one_over_cp(variant):
    case = Case(1, 8, 8, 64)
    alone = saved_bytes(shape_of(case, 1), variant)
    assert [alone / saved_bytes(shape_of(case, cp), variant) for cp in (2, 4, 8)] == [2, 4, 8]


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_heads_send_less_than_the_ring_where_every_head_has_its_own_keys(cp):
    shape = shape_of(Case(1, 8, 8, 64), cp)
    pairs = zip(context_traffic(shape, "heads"), context_traffic(shape, "ring"), strict=True)
    ratios = [heads.bytes_sent / ring.bytes_sent for heads, ring in pairs]
    assert ratios == [Fraction(2, cp), Fraction(1, cp)]


def test_the_gather_keeps_all_keys():
    one, four = (saved_bytes(shape_of(CASE, cp), "gather") for cp in (1, 4))
    all_keys = 2 * 8 * 3 * 2 * 24 * 5
    assert (one - all_keys) == 4 * (four - all_keys)


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="'ulysses'"):
        context_traffic(shape_of(CASE, 2), "ulysses")
    with pytest.raises(ValueError, match="'striped'"):
        chunk_pairs(2, "striped")
