"""What watches experts in training counts right and adds the loss it says. Oracle: autograd."""

import torch
from torch import nn

from labkit.bench.experts import load_of, means, watched
from labkit.model.moe import MoE, auxiliary_loss


def two_layers():
    torch.manual_seed(0)
    sizes = dict(hidden_size=4, intermediate_size=6, num_experts=3, top_k=2)
    return nn.Sequential(MoE(**sizes), MoE(**sizes)).double()


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_loss_enters_in_backward():
    watched_layers, plain = two_layers(), two_layers()
    with watched(watched_layers, coefficient=0.3) as seen:
        out = watched_layers(X)
        out.square().mean().backward()
    hidden = plain[0](X)
    losses = auxiliary_loss(plain[0].route(X)) + auxiliary_loss(plain[1].route(hidden))
    assert torch.equal(out, plain[1](hidden)), "the output is not changed"
    (plain[1](hidden).square().mean() + 0.3 * losses).backward()
    pairs = zip(watched_layers.parameters(), plain.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=0, atol=1e-12) for a, b in pairs)
    routings = plain[0].route(X), plain[1].route(hidden)
    assert [c.tolist() for c in seen] == [
        r.indices.flatten().bincount(minlength=3).tolist() for r in routings
    ]


def test_nothing_watches_afterwards():
    layers = two_layers()
    with watched(layers) as seen:
        pass
    layers(X)
    assert seen == []


def test_load_over_steps():
    even, one_sided = [[2, 2], [3, 1]], [[4, 0], [4, 0]]
    found = load_of([even, one_sided])
    assert found["imbalance"] == [(1.25 + 2) / 2]
    assert found["last_counts"] == [[6, 2], [7, 1]]
    assert means([1.0, 2.0, 4.0], 2) == [1.5, 4.0]
