"""The small parts of a decoder layer: RMSNorm, rotary positions, SwiGLU.

    RMSNorm   y = x / sqrt(mean(x²) + eps) · w                      arXiv 1910.07467, equation 4
    RoPE      (a, b) → (a cos mθ − b sin mθ, b cos mθ + a sin mθ)   arXiv 2104.09864, section 3.4
    SwiGLU    y = W_down (silu(W_gate x) · W_up x)                  arXiv 2002.05202, equation 6

The rotated pairs are (x_i, x_{i + d/2}), the half-split layout of Llama's published checkpoints.

Shapes: B batch, T sequence, D width, F hidden width, H heads, d head width.
"""

import math

import torch
from torch import nn
from torch.nn.functional import silu

from labkit.model.config import ModelConfig


class RMSNorm(nn.Module):
    """Scale every vector to unit root mean square, then by a learned gain."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype != torch.float64 else x  # squares of fp16 overflow above 255
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)  # the gain after the cast, as Llama does


class SwiGLU(nn.Module):
    """The gated MLP of a layer: 3·D·F weights, 6·D·F FLOPs a token forward."""

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        D, F = hidden_size, intermediate_size
        self.gate_proj = nn.Linear(D, F, bias=False)
        self.up_proj = nn.Linear(D, F, bias=False)
        self.down_proj = nn.Linear(F, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = silu(self.gate_proj(x)) * self.up_proj(x)  # [B, T, F]
        return self.down_proj(hidden)  # [B, T, D]


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians a position for each of the head_dim / 2 pairs, in float32."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    theta = 1.0 / config.rope_theta**exponent  # [d/2]
    scaling = config.rope_scaling
    if scaling is None:
        return theta
    turns = scaling.original_max_seq_len * theta / (2 * math.pi)  # full turns in the old context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return keep * theta + (1 - keep) * theta / scaling.factor


def rope_table(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for positions [B, T] (or [T]), computed in float32 and then cast.

    Returns:
        (cos, sin), each [B, 1, T, d/2]: they broadcast over heads.
    """
    angles = positions[..., None].float() * frequencies  # [B, T, d/2]
    angles = angles.unsqueeze(-3)  # [B, 1, T, d/2]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn every pair of x [B, H, T, d] by its position's angle."""
    a, b = x.chunk(2, dim=-1)  # [B, H, T, d/2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)  # [B, H, T, d]
