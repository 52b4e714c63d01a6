"""Context parallelism: three ways to attend to a sequence that several ranks share.

Promised: result and gradients of q, k and v are those of one process, on 1, 2, 3 and 4 ranks, in
both layouts, causal or not, with fewer KV heads than heads; scores of 1e4 and rows that see no key
make no nan; messages travel while the rank computes; inputs are left alone; what does not fit is
refused on every rank before anything is sent.
Oracle: torch's scaled_dot_product_attention on the whole sequence, float64.
"""

import pytest
import torch

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.parallel.context import Attended, merge, ring_attention
from tests.parallel.context_cases import VARIANTS, Case, errors, normal, own_inputs

ATOL = 1e-12  # sums of at most 42 terms of unit scale in float64
LAYOUTS = ["zigzag", "contiguous"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("world_size", "case"),
    [
        (1, Case(3, 5, 5, 6)),
        (2, Case(3, 6, 2, 12)),
        (2, Case(1, 6, 1, 20)),
        (3, Case(1, 9, 3, 18)),
        (4, Case(3, 4, 2, 24)),
        (4, Case(1, 8, 4, 40)),
    ],
)
def test_the_numbers_of_one_process(world_size, case, variant, layout):
    for differences in run_ranks(errors, world_size, variant, case, True, layout):
        assert max(differences) < ATOL, f"out, dq, dk, dv: {differences}"


@pytest.mark.parametrize("variant", ["ring", "gather"])
@pytest.mark.parametrize(("world_size", "case"), [(2, Case(1, 3, 1, 12)), (4, Case(3, 7, 7, 24))])
def test_head_counts_that_do_not_divide(world_size, case, variant):
    for differences in run_ranks(errors, world_size, variant, case, True, "zigzag"):
        assert max(differences) < ATOL


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_a_mask(variant, layout):
    for differences in run_ranks(errors, 2, variant, Case(1, 4, 2, 12), False, layout):
        assert max(differences) < ATOL


@pytest.mark.parametrize("variant", VARIANTS)
def test_large_scores(variant):
    # Scores of 1e4 are off by 1e-12 themselves, which moves weights as much, and gradients of k,
    # which are 1e4 times as large, 1e4 times as much; ten such errors are allowed.
    for differences in run_ranks(errors, 2, variant, Case(1, 2, 2, 12), True, "zigzag", 1e4):
        assert max(differences) < 1e4 * ATOL * 10


def whole_and_parts(scores, values, cut):
    def part(s, v):
        lse = s.logsumexp(-1)
        weights = (s - lse.masked_fill(lse.isinf(), 0.0).unsqueeze(-1)).exp()
        return Attended(out=weights @ v, lse=lse)

    return (
        part(scores, values),
        part(scores[..., :cut], values[..., :cut, :]),
        part(scores[..., cut:], values[..., cut:, :]),
    )


def test_merged_parts_are_the_whole_for_large_scores_and_empty_rows():
    scores, values = 1e4 * normal(2, 1, 1, 6, 7), normal(2, 1, 1, 7, 3, seed=1)
    scores[..., 0, :3] = -torch.inf  # sees nothing in the first part
    scores[..., 1, 3:] = -torch.inf  # nor here in the second
    scores[..., 2, :] = -torch.inf  # nor anywhere
    scores[..., 3, :] = torch.tensor([-1e4, 1e4, 0, 0, 1e4, -1e4, 1e4], dtype=torch.float64)
    whole, first, second = whole_and_parts(scores, values, 3)
    for merged in (merge(first, second), merge(second, first)):
        assert torch.equal(merged.out[..., 2, :], torch.zeros(2, 1, 1, 3, dtype=torch.float64))
        torch.testing.assert_close(merged.out, whole.out, rtol=0, atol=ATOL)
        torch.testing.assert_close(merged.lse, whole.lse, rtol=1e-15, atol=0)


def low_precision(group, variant):
    q, k, v = (normal(1, 2, 8, 4, seed=i).bfloat16().requires_grad_() for i in range(3))
    out = VARIANTS[variant](q, k, v, group)
    out.sum().backward()
    return {out.dtype, q.grad.dtype, k.grad.dtype, v.grad.dtype}


@pytest.mark.parametrize("variant", VARIANTS)
def test_dtypes_are_those_of_the_inputs(variant):
    assert run_ranks(low_precision, 2, variant) == [{torch.bfloat16}] * 2


def refused(group, variant, shapes, layout="zigzag", dtype=torch.float64):
    q, k, v = (normal(*shape) for shape in shapes)
    with CommLedger() as ledger:
        try:
            VARIANTS[variant](q.to(dtype), k, v, group, layout=layout)
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


FITS = (1, 4, 4, 3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(1, 4, 3, 3)] * 3, "3 tokens a rank at cp=2: zigzag needs a multiple of 2; pad the"),
        ([(1, 4, 0, 3)] * 3, "0 tokens a rank at cp=2"),
        ([FITS, (1, 3, 4, 3), (1, 3, 4, 3)], "4 heads over 3 KV heads"),
        ([FITS, (1, 4, 6, 3), (1, 4, 6, 3)], "q [1, 4, 4, 3], k [1, 4, 6, 3], v [1, 4, 6, 3]: on"),
        ([FITS, FITS, (1, 4, 4, 2)], "q [1, 4, 4, 3], k [1, 4, 4, 3], v [1, 4, 4, 2]: only"),
        ([FITS, FITS, (4, 4, 3)], "are [batch, heads, tokens, width], got q [1, 4, 4, 3]"),
    ],
)
def test_what_does_not_fit_is_refused(variant, shapes, words):
    for message, calls in run_ranks(refused, 2, variant, shapes):
        assert words in message
        assert calls == 0


def test_other_refusals():
    words = "layout is one of ('contiguous', 'zigzag'), got 'striped'"
    for found in run_ranks(refused, 2, "ring", [FITS] * 3, "striped"):
        assert found == (words, 0)
    for message, calls in run_ranks(refused, 2, "ring", [FITS] * 3, "zigzag", torch.float32):
        assert "q is torch.float32, k torch.float64" in message
        assert calls == 0


@pytest.mark.parametrize(
    ("world_size", "heads", "kv_heads", "words"),
    [
        (2, 3, 3, "3 heads over cp=2: cp must divide them; use ring_attention or gather_attention"),
        (4, 12, 3, "3 KV heads over cp=4: one must divide the other; use ring_attention"),
        (4, 12, 6, "6 KV heads over cp=4"),
    ],
)
def test_heads_that_do_not_divide_are_refused(world_size, heads, kv_heads, words):
    shapes = [(1, heads, 2, 3), (1, kv_heads, 2, 3), (1, kv_heads, 2, 3)]
    for message, calls in run_ranks(refused, world_size, "heads", shapes):
        assert words in message
        assert calls == 0


def order_of_events(group):
    q, k, v, upstream = own_inputs(group, Case(1, 2, 2, 16), "zigzag")
    with EventLog() as log:
        out = ring_attention(q, k, v, group)
        log.mark("backward")
        out.backward(upstream)
    events = [type(event).__name__ for event in log.events]
    return [name for i, name in enumerate(events) if i == 0 or events[i - 1] != name]


def test_messages_travel_while_the_rank_computes():
    """In every step of the ring: launched before the work, waited for after it."""
    ring = ["Launch", "Compute", "Wait", "Compute"]
    home = ["Launch", "Wait"]  # of the sums of dK and dV
    assert run_ranks(order_of_events, 2) == [[*ring, "Mark", *ring, *home]] * 2
