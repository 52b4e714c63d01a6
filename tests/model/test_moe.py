"""The mixture of experts, its routing and its losses.

Promised: scores, choice and weights are those of loops; outputs and all gradients are the dense
layer's, for random, one-sided and empty experts, k 1 and 2, odd token counts and none; the
auxiliary loss is 1 when even and 2 for one pair of four; its gradient goes through P only; the bias
moves the choice and never the weights; nan and wrong sizes are refused.
Oracles: loops over numbers, and every expert on every token (moe_reference), float64.
"""

import math

import pytest
import torch

from labkit.model.moe import (
    MoE,
    Routing,
    auxiliary_loss,
    moe_reference,
    router_z_loss,
    updated_bias,
)
from labkit.parallel.recompute import recomputing

ATOL = 1e-12  # sums of at most 41 terms of unit scale in float64
ROUTINGS = {"random": [0, 0, 0, 0], "one pair": [0, 9, 0, 9], "an empty expert": [0, 0, -9, 0]}


def layer(top_k=2, bias=None, num_experts=4):
    torch.manual_seed(0)
    sizes = dict(hidden_size=5, intermediate_size=7, num_experts=num_experts, top_k=top_k)
    moe = MoE(**sizes, balancing=bias is not None).double()
    torch.nn.init.normal_(moe.router.weight)
    if bias is not None:
        moe.bias.copy_(torch.tensor(bias))
    return moe


def tokens(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, 5, generator=generator, dtype=torch.float64)


def routing_by_loops(moe, x):
    for row in x.tolist():
        logits = [
            sum(a * b for a, b in zip(row, w, strict=True)) for w in moe.router.weight.tolist()
        ]
        exponentials = [math.exp(logit) for logit in logits]
        scores = [e / sum(exponentials) for e in exponentials]
        bias = [0.0] * len(scores) if moe.bias is None else moe.bias.tolist()
        shifted = [s + b for s, b in zip(scores, bias, strict=True)]
        chosen = sorted(range(len(scores)), key=lambda i: -shifted[i])[: moe.top_k]
        yield scores, chosen, [scores[i] / sum(scores[j] for j in chosen) for i in chosen]


@pytest.mark.parametrize("bias", [None, [0.0, 0.3, -0.2, 0.1]])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_routing_is_that_of_loops(top_k, bias):
    moe, x = layer(top_k, bias), tokens(13)
    scores, indices, weights = zip(*routing_by_loops(moe, x), strict=True)
    routing = moe.route(x)
    assert routing.indices.tolist() == list(indices)
    for found, expected in ((routing.scores, scores), (routing.weights, weights)):
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("shape", [(1,), (41,), (3, 7), (0,)])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("bias", ROUTINGS.values(), ids=ROUTINGS)
def test_output_and_gradients_are_the_dense_layers(bias, top_k, shape):
    moe, x = layer(top_k, bias), tokens(*shape).requires_grad_()
    before = x.detach().clone()
    wanted = [x, *moe.parameters()]
    upstream = tokens(*shape) + 1
    outs = [moe(x), moe_reference(moe, x)]
    grads = [torch.autograd.grad(out, wanted, upstream) for out in outs]  # None is an error
    torch.testing.assert_close(*outs, rtol=0, atol=ATOL)
    torch.testing.assert_close(*grads, rtol=0, atol=ATOL)
    assert outs[0].shape == x.shape
    assert torch.equal(x, before)


def test_an_expert_without_tokens_has_gradients_of_zero():
    moe = layer(2, ROUTINGS["an empty expert"])
    moe(tokens(9)).sum().backward()
    assert all(not p.grad.any() for p in moe.experts[2].parameters())
    assert all(p.grad.any() for p in moe.experts[0].parameters())


def test_scores_are_fp32_and_the_output_keeps_its_dtype():
    moe = layer().bfloat16()
    routing = moe.route(tokens(6).bfloat16())
    assert routing.scores.dtype == routing.weights.dtype == torch.float32
    assert moe(tokens(6).bfloat16()).dtype == torch.bfloat16


def even(probabilities, indices):
    scores = torch.tensor(probabilities, dtype=torch.float64).requires_grad_()
    indices = torch.tensor(indices)
    return Routing(indices=indices, weights=scores[:, :2], scores=scores, logits=scores.log())


def test_the_auxiliary_loss_by_hand():
    quarter, half = [[0.25] * 4] * 4, [[0.5, 0.0, 0.0, 0.5]] * 4
    balanced = even(quarter, [[0, 1], [2, 3], [0, 2], [1, 3]])
    assert auxiliary_loss(balanced).item() == 1.0
    assert auxiliary_loss(even(half, [[0, 3]] * 4)).item() == 2.0
    assert auxiliary_loss(even(quarter, [[0, 3]] * 4)).item() == 1.0  # even P: any load gives 1


def test_the_auxiliary_losss_gradient_is_that_of_p():
    routing = even([[0.5, 0.25, 0.125, 0.125]] * 2, [[0, 1], [0, 2]])
    auxiliary_loss(routing).backward()
    load = torch.tensor([0.5, 0.25, 0.25, 0.0]).double()
    assert torch.equal(routing.scores.grad, (4 * load / 2).expand(2, 4))


def test_the_auxiliary_loss_and_the_z_loss_reach_the_router():
    moe, x = layer(1), tokens(12)
    for loss in (auxiliary_loss, router_z_loss):
        (grad,) = torch.autograd.grad(loss(moe.route(x)), moe.router.weight)
        assert grad.abs().max() > 1e-3
        assert loss(moe.route(x[:0])).item() == 0.0


def test_the_z_loss_by_hand():
    moe, x = layer(), tokens(7)
    sums = [sum(math.exp(v) for v in row) for row in (x @ moe.router.weight.T).tolist()]
    expected = sum(math.log(s) ** 2 for s in sums) / 7
    assert router_z_loss(moe.route(x)).item() == pytest.approx(expected, abs=ATOL)


def test_the_bias_moves_towards_even_load():
    bias = torch.tensor([0.5, 0.0, 0.0, -0.5])
    moved = updated_bias(bias, torch.tensor([9, 4, 1, 2]), 0.25)
    assert torch.equal(moved, torch.tensor([0.25, 0.0, 0.25, -0.25]))
    assert torch.equal(bias, torch.tensor([0.5, 0.0, 0.0, -0.5]))


def test_the_bias_evens_the_load():
    moe, x = layer(2, [0.0] * 4), tokens(400) + 0.5
    loads = []
    for _ in range(500):
        loads.append(moe.route(x).indices.flatten().bincount(minlength=4))
        moe.bias.copy_(updated_bias(moe.bias, loads[-1], 0.002))
    first, last = (load.max().item() / 200 for load in (loads[0], loads[-1]))
    assert first > 1.3
    assert last < 1.1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="top_k 5 of 4 experts"):
        layer(5)
    with pytest.raises(ValueError, match="top_k 0 of 4 experts"):
        layer(0)
    for bad in (torch.nan, torch.inf):
        x = tokens(3)
        x[1, 2] = bad
        with pytest.raises(ValueError, match="nan for 1 of 3 tokens"):
            layer().route(x)


def test_copies_are_counted_once_and_only_in_training():
    moe, x = layer(2, [0.0] * 4), tokens(9)
    with torch.no_grad():
        moe(x)
    out = moe(x)  # without backward: as evaluation does that forgets no_grad
    assert not moe.counts.any()
    out.sum().backward()
    expected = moe.route(x).indices.flatten().bincount(minlength=4)
    assert torch.equal(moe.counts, expected)
    with recomputing([moe]):
        again = moe(x.requires_grad_())
    again.sum().backward()
    assert torch.equal(moe.counts, 2 * expected)
    assert "counts" not in moe.state_dict()
