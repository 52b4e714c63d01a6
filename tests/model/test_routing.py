"""Capacity: places by hand, kept copies by one counter for each expert, outputs by a dense sum.

Promised: the order is all first choices, then all second ones; dropped copies weigh 0 and the rest
keep their weight; outputs and gradients are those of every kept copy computed alone; a token
without a copy has an output of 0; a large factor changes nothing; bad sizes are refused.
"""

from collections import Counter

import pytest
import torch

from labkit.model.moe import MoE, moe_reference
from labkit.model.routing import capacity, kept_copies, limit

ATOL = 1e-12  # sums of a few terms of unit scale in float64


@pytest.mark.parametrize(
    ("sizes", "places"),
    [  # num_tokens, num_experts, top_k, factor
        ((8, 4, 1, 1.0), 2),
        ((8, 4, 2, 1.25), 5),
        ((9, 4, 2, 1.0), 5),
        ((10, 1, 1, 1.1), 11),
        ((1, 64, 1, 1.0), 1),
        ((0, 4, 2, 2.0), 0),
    ],
)
def test_places_by_hand(sizes, places):
    assert capacity(*sizes) == places


def kept_by_counters(indices, places):
    taken, kept = Counter(), torch.zeros(indices.shape, dtype=torch.bool)
    for slot in range(indices.shape[1]):
        for token in range(len(indices)):
            expert = int(indices[token, slot])
            kept[token, slot] = taken[expert] < places
            taken[expert] += 1
    return kept


@pytest.mark.parametrize("places", [0, 1, 3, 99])
@pytest.mark.parametrize(("T", "k"), [(0, 2), (1, 1), (13, 1), (13, 2), (13, 4)])
def test_first_come_first_served(T, k, places):
    scores = torch.rand(T, 5, generator=torch.Generator().manual_seed(0))
    scores[:, 1] += 0.4
    indices = scores.topk(k, -1).indices
    assert torch.equal(kept_copies(indices, 5, places), kept_by_counters(indices, places))


def test_a_second_choice_gives_way_to_a_later_first():
    kept = kept_copies(torch.tensor([[0, 1], [1, 0]]), 2, 1)
    assert kept.tolist() == [[True, False], [True, False]]


def layer(top_k):
    torch.manual_seed(0)
    moe = MoE(hidden_size=5, intermediate_size=7, num_experts=4, top_k=top_k).double()
    torch.nn.init.normal_(moe.router.weight)
    return moe, torch.randn(13, 5, dtype=torch.float64, requires_grad=True)


def by_copies(moe, x, kept):
    """Each token alone, each kept copy alone."""
    whole, rows = moe.route(x), []
    for token, row in enumerate(x):
        out = torch.zeros_like(row)
        for slot in kept[token].nonzero().flatten().tolist():
            expert = moe.experts[int(whole.indices[token, slot])]
            out = out + whole.weights[token, slot] * expert(row)
        rows.append(out)
    return torch.stack(rows)


@pytest.mark.parametrize(("top_k", "factor"), [(1, 0.5), (2, 0.5), (2, 1.0)])
def test_output_and_gradients_are_those_of_kept_copies(top_k, factor):
    moe, x = layer(top_k)
    found = limit(moe.route(x), factor)
    kept = kept_by_counters(moe.route(x).indices, capacity(13, 4, top_k, factor))
    outs = [moe.mix(x, found.routing), by_copies(moe, x, kept)]
    wanted = [x, moe.router.weight]
    grads = [torch.autograd.grad(out.square().sum(), wanted) for out in outs]
    torch.testing.assert_close(*outs, rtol=0, atol=ATOL)
    torch.testing.assert_close(*grads, rtol=0, atol=1e-11)  # sums of squares are larger
    assert found.num_dropped == int((~kept).sum()) > 0
    lost = ~kept.any(-1)
    assert not outs[0][lost].any()  # the residual only
    assert lost.any() or top_k > 1


def test_a_large_factor_changes_nothing():
    moe, x = layer(2)
    found = limit(moe.route(x), 4.0)
    assert found.num_dropped == 0
    assert torch.equal(found.routing.weights, moe.route(x).weights)
    out = moe.mix(x, found.routing)
    torch.testing.assert_close(out, moe_reference(moe, x), rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((8, 4, 5, 1.0), "top_k 5 of 4 experts"),
        ((-1, 4, 2, 1.0), "num_tokens is -1"),
        ((8, 4, 2, 0.0), "capacity factor is 0.0"),
        ((8, 4, 2, float("inf")), "capacity factor is inf"),
        ((8, 4, 2, float("nan")), "capacity factor is nan"),
    ],
)
def test_what_does_not_fit_is_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        capacity(*sizes)
