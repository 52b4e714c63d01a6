"""Mixture of experts: a router sends every token to k of E MLPs, and mixes their answers.

    scores   s = softmax(W_r x) over all E experts          in fp32 at least
    choice   K = the k largest of s + b                     b: balancing bias, or none
    weights  g_e = s_e / Σ_{K} s                            the bias takes no part
    output   y = Σ_{K} g_e · SwiGLU_e(x)

No token is dropped and nothing is padded: copies are sorted by expert, and each expert takes the
rows it was given. With k = 1 the one weight is 1, and the router learns from the losses below only.

    auxiliary loss  E · Σ_e f_e P_e       f_e = copies_e / (k T), P_e = mean of s_e over the tokens
    router z-loss   mean of (log Σ_e exp(logit_e))²
    balancing bias  b_e + rate · sign(mean copies − copies_e)

The auxiliary loss is 1 where load or probabilities are even. Its gradient goes through P alone: f
is a count.

Cost: E · 3 D F weights held, k · 6 D F FLOPs a token forward, and 2 D E for the router.
Sources: Mixtral (arXiv 2401.04088), section 2.1; Switch Transformer (arXiv 2101.03961), equations
4 to 6; ST-MoE (arXiv 2202.08906), equation 5; DeepSeek-V3 (arXiv 2412.19437), section 2.1.2, whose
scores are sigmoids.

Shapes: T tokens of all leading dims together, D width, F hidden width, E experts, k choices.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from labkit.model.layers import SwiGLU


class Routing(NamedTuple):
    """Where tokens go, and how much each answer counts."""

    indices: torch.Tensor  # [T, k], best first
    weights: torch.Tensor  # [T, k], a row sums to 1
    scores: torch.Tensor  # [T, E]
    logits: torch.Tensor  # [T, E]


class MoE(nn.Module):
    """A router and its experts, in the place of an MLP.

    Args:
        intermediate_size: hidden width of one expert.
        top_k: experts a token goes to.
        balancing: hold a `bias` that shifts the choice, and count copies; `balance_experts` moves
            the bias between steps.

    Raises:
        ValueError: if top_k is under 1 or above num_experts.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        top_k: int,
        balancing: bool = False,
    ):
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k {top_k} of {num_experts} experts: choose 1 to {num_experts}")
        self.top_k = top_k
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList(
            SwiGLU(hidden_size, intermediate_size) for _ in range(num_experts)
        )
        self.bias: torch.Tensor | None
        self.counts: torch.Tensor | None  # copies since the last balancing
        self.register_buffer("bias", torch.zeros(num_experts) if balancing else None)
        counts = torch.zeros(num_experts, dtype=torch.int64) if balancing else None
        self.register_buffer("counts", counts, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., D] to [..., D]."""
        return self.mix(x, self.route(x))

    def route(self, x: torch.Tensor) -> Routing:
        """Choose k experts for each token of x [..., D].

        Raises:
            ValueError: if a score is nan.
        """
        routing = self.choose(x)
        if lost := int(routing.weights.isnan().any(-1).sum()):
            raise ValueError(f"router scores are nan for {lost} of {len(routing.weights)} tokens")
        return routing

    def choose(self, x: torch.Tensor) -> Routing:
        """The same without a look at the numbers: whoever calls it asks for nan."""
        logits = self.router(x.reshape(-1, x.shape[-1]))  # [T, E]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        scores = logits.softmax(-1)  # [T, E]
        choice = scores.detach() if self.bias is None else scores.detach() + self.bias
        indices = choice.topk(self.top_k, -1).indices  # [T, k]
        chosen = scores.gather(-1, indices)  # [T, k]
        weights = chosen / chosen.sum(-1, keepdim=True)
        if self.counts is not None and logits.requires_grad:
            logits.register_hook(partial(self._count, indices))
        return Routing(indices=indices, weights=weights, scores=scores, logits=logits)

    def _count(self, indices: torch.Tensor, _: torch.Tensor) -> None:
        """In backward: so evaluation does not count, and a layer that runs again counts once."""
        if self.counts is not None:
            self.counts += indices.flatten().bincount(minlength=len(self.counts))

    def mix(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Every token through its experts, and their answers added by weight."""
        tokens, chosen = x.reshape(-1, x.shape[-1]), routing.indices.flatten()  # [T, D], [T k]
        order = chosen.argsort(stable=True)  # copies by expert
        rows = tokens[order // self.top_k]  # [T k, D]
        parts = rows.split(chosen.bincount(minlength=len(self.experts)).tolist())
        # An expert without rows runs too: its gradients are zeros, not None.
        answers = torch.cat([f(part) for f, part in zip(self.experts, parts, strict=True)])
        copies = answers[order.argsort()].unflatten(0, routing.indices.shape)  # [T, k, D]
        out = (copies * routing.weights.unsqueeze(-1).to(x.dtype)).sum(1)  # [T, D]
        return out.view(x.shape)


def moe_reference(moe: MoE, x: torch.Tensor) -> torch.Tensor:
    """The same layer by E times the work: every expert on every token, most with weight 0."""
    routing, tokens = moe.route(x), x.reshape(-1, x.shape[-1])
    weights = torch.zeros_like(routing.scores).scatter(-1, routing.indices, routing.weights)
    answers = torch.stack([expert(tokens) for expert in moe.experts], dim=1)  # [T, E, D]
    out = (weights.unsqueeze(-1).to(x.dtype) * answers).sum(1)  # [T, D]
    return out.view(x.shape)


def auxiliary_loss(routing: Routing) -> torch.Tensor:
    """E Σ f P: 1 for an even load, up to E / k where all tokens go to the same k experts."""
    num_experts = routing.scores.shape[-1]
    counts = routing.indices.flatten().bincount(minlength=num_experts)  # [E]
    load = counts / max(1, routing.indices.numel())
    probability = routing.scores.sum(0) / max(1, len(routing.scores))  # [E]
    return num_experts * (load.to(probability.dtype) * probability).sum()


def router_z_loss(routing: Routing) -> torch.Tensor:
    """Mean square of the softmax's log-denominator: keeps logits small."""
    return routing.logits.logsumexp(-1).square().sum() / max(1, len(routing.logits))


def updated_bias(bias: torch.Tensor, counts: torch.Tensor, rate: float) -> torch.Tensor:
    """The bias [E] one rate down for experts above the mean of counts [E], up for those below.

    `counts` are those of all ranks, or replicas would drift apart.
    """
    counts = counts.to(bias.device, torch.float64)
    return bias + rate * (counts.mean() - counts).sign().to(bias.dtype)


@torch.no_grad()
def balance_experts(
    model: nn.Module, rate: float, total: Callable[[torch.Tensor], torch.Tensor] = torch.clone
) -> None:
    """Move the bias of each layer by what its backwards have counted, and count anew.

    Args:
        model: with MoE layers at any depth; those without a bias are left alone.
        rate: how far, in a score's unit.
        total: sums counts [E] over the ranks that hold other tokens.
    """
    for layer in model.modules():
        if isinstance(layer, MoE) and layer.bias is not None and layer.counts is not None:
            layer.bias.copy_(updated_bias(layer.bias, total(layer.counts), rate))
            layer.counts.zero_()
