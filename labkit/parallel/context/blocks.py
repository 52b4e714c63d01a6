"""Attention to a part of the keys, and how two such parts become one.

    s = q k^T / sqrt(d)                     scores of a block of queries with a block of keys
    lse = log sum exp(s)                    over the block's keys
    out = exp(s - lse) v
    merge:  lse = log(exp lse1 + exp lse2),  out = exp(lse1 - lse) out1 + exp(lse2 - lse) out2

What is kept for backward is out and lse of all keys together. With them each block's gradients can
be computed by themselves, from scores that are computed again:

    p = exp(s - lse)      ds = p (d_out v^T - sum(d_out out)) / sqrt(d)
    dq = ds k             dk = ds^T q             dv = p^T d_out

Blocks that the causal mask hides are left out; a block of a chunk with itself is computed whole,
and half of it masked. Sums are kept in fp32 at least.

Cost: 4 c^2 d FLOP a head and pair of chunks of c tokens, 10 c^2 d backward.
Source: FlashAttention-2 (arXiv 2307.08691), section 3; ring attention (arXiv 2310.01889).

Shapes: B batch, H heads, K KV heads, G = H/K heads that share one, t queries, u keys, d head width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The result for the keys seen so far."""

    out: torch.Tensor  # [B, K, G, t, d]
    lse: torch.Tensor  # [B, K, G, t]; -inf where no key has been seen


def merge(first: Attended, second: Attended) -> Attended:
    """The result for the keys of both. Weights are at most 1, however large the scores."""
    lse = torch.logaddexp(first.lse, second.lse)  # [B, K, G, t]
    finite = _finite(lse)  # -inf less -inf would be nan
    a, b = (each.lse.sub(finite).exp().unsqueeze(-1) for each in (first, second))
    return Attended(out=a * first.out + b * second.out, lse=lse)


def nothing_yet(q: torch.Tensor) -> Attended:
    """The result for no keys at all, for queries [B, K, G, t, d]."""
    out = q.new_zeros(q.shape, dtype=_wide(q))
    return Attended(out=out, lse=out.new_full(q.shape[:-1], -torch.inf))


def attend(
    seen: Attended,
    q: torch.Tensor,
    kv: torch.Tensor,
    q_chunks: Sequence[int],
    k_chunks: Sequence[int],
    causal: bool,
) -> Attended:
    """`seen`, with these keys added.

    Args:
        seen: of the keys so far.
        q: [B, K, G, t, d], whose tokens are q_chunks of the sequence.
        kv: [2, B, K, u, d], whose tokens are k_chunks of the sequence.
        q_chunks, k_chunks: numbers of chunks of equal length, in the order in which they lie.
        causal: a token sees none after it.
    """
    out, lse = [], []
    for i, rows in _chunks(q, q_chunks):
        part = Attended(
            out=seen.out[..., rows, :],
            lse=seen.lse[..., rows],
        )
        for j, columns in _chunks(kv, k_chunks):
            if i >= j or not causal:
                block = _block(q[..., rows, :], kv[..., columns, :], causal and i == j)
                part = merge(part, block)
        out.append(part.out)
        lse.append(part.lse)
    return Attended(out=torch.cat(out, -2), lse=torch.cat(lse, -1))


def gradients(
    q: torch.Tensor,
    kv: torch.Tensor,
    result: Attended,
    grad: torch.Tensor,
    q_chunks: Sequence[int],
    k_chunks: Sequence[int],
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and kv through these keys; arguments as in `attend`.

    Args:
        result: of all keys, not of these alone.
        grad: of the result's out, [B, K, G, t, d].

    Returns:
        [B, K, G, t, d] and [2, B, K, u, d], in fp32 or wider.
    """
    grad = grad.to(result.out.dtype)
    dq, dkv = torch.zeros_like(result.out), kv.new_zeros(kv.shape, dtype=_wide(kv))
    delta = (grad * result.out).sum(-1)  # [B, K, G, t]
    for i, rows in _chunks(q, q_chunks):
        for j, columns in _chunks(kv, k_chunks):
            if i < j and causal:
                continue
            queries, keys = q[..., rows, :], kv[..., columns, :]
            scores = _scores(queries, keys[0], causal and i == j)  # [B, K, G, c, c]
            p = scores.sub(_finite(result.lse[..., rows]).unsqueeze(-1)).exp()
            d_out = grad[..., rows, :]  # [B, K, G, c, d]
            dp = _times(d_out, keys[1].to(d_out.dtype).mT)  # [B, K, G, c, c]
            ds = p * (dp - delta[..., rows].unsqueeze(-1)) * q.shape[-1] ** -0.5
            dq[..., rows, :] += _times(ds, keys[0].to(ds.dtype))
            dkv[0, ..., columns, :] += ds.flatten(2, 3).mT @ queries.to(ds.dtype).flatten(2, 3)
            dkv[1, ..., columns, :] += p.flatten(2, 3).mT @ d_out.flatten(2, 3)
    return dq, dkv


def chunked_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    q_chunks: Sequence[int],
    k_chunks: Sequence[int],
    causal: bool,
) -> torch.Tensor:
    """Attention on one rank, which keeps q, kv, out and lse for backward; shapes as in `attend`."""
    return _Chunked.apply(q, kv, q_chunks, k_chunks, causal)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, kv: torch.Tensor, q_chunks: Any, k_chunks: Any, causal: bool
    ) -> torch.Tensor:
        result = attend(nothing_yet(q), q, kv, q_chunks, k_chunks, causal)
        out = result.out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, result.lse)
        ctx.rest = (q_chunks, k_chunks, causal)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, kv, out, lse = ctx.saved_tensors
        result = Attended(out=out.to(lse.dtype), lse=lse)
        dq, dkv = gradients(q, kv, result, grad, *ctx.rest)
        return dq.to(q.dtype), dkv.to(kv.dtype), None, None, None


def _block(q: torch.Tensor, kv: torch.Tensor, diagonal: bool) -> Attended:
    """Queries [B, K, G, c, d] with keys and values [2, B, K, c, d]."""
    scores = _scores(q, kv[0], diagonal)  # [B, K, G, c, c]
    lse = scores.logsumexp(-1)  # [B, K, G, c]
    weights = scores.sub(_finite(lse).unsqueeze(-1)).exp()
    return Attended(out=_times(weights, kv[1].to(weights.dtype)), lse=lse)


def _scores(q: torch.Tensor, k: torch.Tensor, diagonal: bool) -> torch.Tensor:
    scores = _times(q, k.mT).to(_wide(q)) * q.shape[-1] ** -0.5  # [B, K, G, c, c]
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[B, K, G, t, m] by [B, K, m, n]: the heads that share y are rows of one product."""
    product = x.flatten(2, 3) @ y  # [B, K, G t, n]
    return product.unflatten(2, x.shape[2:4])  # [B, K, G, t, n]


def _chunks(x: torch.Tensor, chunks: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """(number of the chunk, its place in x) along the tokens."""
    length = x.shape[-2] // len(chunks)
    for place, chunk in enumerate(chunks):
        yield chunk, slice(place * length, (place + 1) * length)


def _finite(lse: torch.Tensor) -> torch.Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
