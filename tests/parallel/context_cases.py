"""Shards, whole attention and the three variants: what the tests of context parallelism share."""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from labkit.parallel.context import (
    gather_attention,
    heads_attention,
    ring_attention,
    shard_sequence,
)

VARIANTS = {"ring": ring_attention, "gather": gather_attention, "heads": heads_attention}


class Case(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    width: int = 5


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def whole_inputs(case, scale=1.0):
    """q, k, v and the gradient of the result, for all tokens."""
    b, h, j, t, width = case
    q, k, v = normal(b, h, t, width), normal(b, j, t, width, seed=1), normal(b, j, t, width, seed=2)
    return q * scale, k, v, normal(b, h, t, width, seed=3)


def whole_attention(case, causal, scale=1.0):
    """Result and gradients of q, k, v on one process."""
    *qkv, upstream = whole_inputs(case, scale)
    q, k, v = (x.requires_grad_() for x in qkv)
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), upstream)


def own_inputs(group, case, layout, scale=1.0):
    """This rank's q, k, v, which need gradients, and the gradient of its result."""
    *qkv, upstream = (
        shard_sequence(x, group, dim=2, layout=layout) for x in whole_inputs(case, scale)
    )
    return *(x.requires_grad_() for x in qkv), upstream


def own_attention(group, variant, case, causal, layout, scale=1.0):
    """Result and gradients of this rank's q, k, v; inputs must be left as they were."""
    q, k, v, upstream = own_inputs(group, case, layout, scale)
    before = [x.detach().clone() for x in (q, k, v, upstream)]
    out = VARIANTS[variant](q, k, v, group, causal=causal, layout=layout)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    for x, old in zip((q, k, v, upstream), before, strict=True):
        assert torch.equal(x, old), "an input is changed"
    return out.detach(), *grads


def errors(group, variant, case, causal, layout, scale=1.0):
    """Largest differences of result, dq, dk and dv from those of one process."""
    mine = own_attention(group, variant, case, causal, layout, scale)
    whole = whole_attention(case, causal, scale)
    shards = [shard_sequence(x, group, dim=2, layout=layout) for x in whole]
    return [float((x - y).abs().max()) for x, y in zip(mine, shards, strict=True)]
