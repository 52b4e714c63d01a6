"""Grouped-query attention, with a cache of keys and values for generation.

    o_h = softmax(q_h k_g(h)ᵀ / sqrt(d) + mask) v_g(h),   g(h) = h // (H / K)

H query heads share K heads of keys and values (arXiv 2305.13245, section 2.2): K = H is multi-head
attention, K = 1 multi-query. The cache holds 2·K·d numbers a token and layer.

Shapes: B batch, T new tokens, S cached and new tokens, D width, H heads, K KV heads, d head width.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from labkit.model.config import ModelConfig
from labkit.model.layers import RMSNorm, rotate

Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class KVCache:
    """Keys and values of the tokens that a model has seen, one pair of tensors a layer."""

    def __init__(self, num_layers: int):
        self.keys: list[torch.Tensor | None] = [None] * num_layers
        self.values: list[torch.Tensor | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Tokens held."""
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def extend(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append k, v [B, K, T, d] to a layer; returns all its keys and values [B, K, S, d]."""
        old_k, old_v = self.keys[layer], self.values[layer]
        if old_k is not None and old_v is not None:
            k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        self.keys[layer], self.values[layer] = k, v
        return k, v


class Attention(nn.Module):
    """Causal self-attention of one layer."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.attend: Core = causal_attention  # of q over k and v, heads apart
        self.head_dim = config.head_dim
        D, d, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = nn.Linear(D, config.num_heads * d, bias=bias)
        self.k_proj = nn.Linear(D, config.num_kv_heads * d, bias=bias)
        self.v_proj = nn.Linear(D, config.num_kv_heads * d, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * d, D, bias=bias)
        self.q_norm = RMSNorm(d, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(d, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        q = self.q_norm(self._heads(self.q_proj(x)))  # [B, H, T, d]
        k = self.k_norm(self._heads(self.k_proj(x)))  # [B, K, T, d]
        v = self._heads(self.v_proj(x))  # [B, K, T, d]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)  # [B, K, S, d]
        o = self.attend(q, k, v)  # [B, H, T, d]
        return self.o_proj(o.transpose(1, 2).flatten(2))  # [B, T, D]

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, heads, T, d]


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q [B, H, T, d] over k, v [B, K, S, d]; the queries are the last T positions."""
    T, S = q.shape[2], k.shape[2]
    mask = None
    if 1 < T < S:  # torch's is_causal aligns the first query with the first key
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=T == S and T > 1, enable_gqa=grouped
    )
