"""Hugging Face's Mixtral block as the oracle: the same weights, the same tokens, both ways.

Its router works in float32 whatever the input, so both run in float32.
"""

import pytest
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import (
    MixtralSparseMoeBlock,
    load_balancing_loss_func,
)

from labkit.model.moe import MoE, auxiliary_loss

SIZES = dict(hidden_size=12, intermediate_size=20)
TOLERANCE = 4 * torch.finfo(torch.float32).eps


def pair(top_k):
    """Our layer, and theirs with its weights."""
    torch.manual_seed(0)
    ours = MoE(**SIZES, num_experts=6, top_k=top_k)
    torch.nn.init.normal_(ours.router.weight)
    config = MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=top_k)
    config._experts_implementation = "eager"  # the plain loop over experts
    theirs = MixtralSparseMoeBlock(config)
    gate_up = [torch.cat([f.gate_proj.weight, f.up_proj.weight]) for f in ours.experts]
    down = [f.down_proj.weight for f in ours.experts]
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        theirs.experts.gate_up_proj.copy_(torch.stack(gate_up))
        theirs.experts.down_proj.copy_(torch.stack(down))
    return ours, theirs


def close(a, b):
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max()) <= TOLERANCE * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_output_and_gradients(top_k):
    ours, theirs = pair(top_k)
    x = torch.randn(3, 7, 12, generator=torch.Generator().manual_seed(1))
    xs = [x.clone().requires_grad_() for _ in range(2)]
    outs = [ours(xs[0]), theirs(xs[1])]
    for out in outs:
        out.square().sum().backward()
    assert close(*outs)
    assert close(xs[0].grad, xs[1].grad)
    assert close(ours.router.weight.grad, theirs.gate.weight.grad)
    down = torch.stack([f.down_proj.weight.grad for f in ours.experts])
    assert close(down, theirs.experts.down_proj.grad)


@pytest.mark.parametrize("top_k", [1, 2])
def test_their_auxiliary_loss_is_k_times_ours(top_k):
    # They divide the copies by T, not by k T: even routing gives k.
    ours, _ = pair(top_k)
    routing = ours.route(torch.randn(41, 12, generator=torch.Generator().manual_seed(1)))
    theirs = load_balancing_loss_func((routing.logits,), 6, top_k)
    assert close(top_k * auxiliary_loss(routing), theirs)
