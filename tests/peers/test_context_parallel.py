"""Ring attention beside torch's own.

torch 2.13's public context_parallel has no strategy for the CPU's attention operator. The ring
below it takes the operator as an argument, so its steps can be compared, forward and backward.

Promised: in the zigzag layout our results and gradients agree with those of torch's ring, which
adds up in fp32.
"""

import pytest
import torch

from labkit.launch import run_ranks
from labkit.parallel.context import ring_attention
from tests.parallel.context_cases import Case, own_inputs

ATOL = 1e-5  # sums of at most 16 terms of unit scale in fp32


def both(group):
    from torch.distributed.tensor.experimental._context_parallel import _attention as peer

    peer._cp_options.enable_load_balance = True  # their name for zigzag
    q, k, v, upstream = own_inputs(group, Case(2, 4, 4, 16, width=8), "zigzag")
    ours = ring_attention(q, k, v, group)
    gradients = torch.autograd.grad(ours, (q, k, v), upstream)
    own = {"query": q.detach(), "key": k.detach(), "value": v.detach()}
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    out, lse, *_ = peer._templated_ring_attention(
        group, 2, forward, **own, is_causal=True, dropout_p=0.0
    )
    theirs = peer._templated_ring_attention_backward(
        group,
        2,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        grad_out=upstream,
        grad_out_name="grad_out",
        **own,
        out=out,
        logsumexp=lse,
        is_causal=True,
        dropout_p=0.0,
    )
    pairs = zip((ours.detach(), *gradients), (out, *theirs[:3]), strict=True)
    return [float((x - y).abs().max()) for x, y in pairs]


@pytest.mark.parametrize("world_size", [2, 4])
def test_results_and_gradients_agree(world_size):
    for differences in run_ranks(both, world_size):
        assert max(differences) < ATOL, f"out, dq, dk, dv: {differences}"
