"""RMSNorm, RoPE and SwiGLU against their definitions, written out with loops in float64."""

import math

import pytest
import torch

from labkit.model.config import PRESETS, RopeScaling
from labkit.model.layers import RMSNorm, rope_frequencies, rope_table, rotate


def test_rmsnorm_by_hand():
    norm = RMSNorm(4, eps=0.0).double()
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    y = norm(torch.tensor([[2.0, -2.0, 2.0, -2.0]]).double())
    assert torch.equal(y, torch.tensor([[1.0, -2.0, 3.0, -4.0]]).double())


def test_rmsnorm_in_fp16_does_not_overflow():
    """300² passes fp16's largest number, 65,504 (pytorch issue 133085)."""
    y = RMSNorm(64, eps=1e-5).half()(torch.full((1, 64), 300.0).half())
    assert (y - 1).abs().max() < 1e-3


def test_rmsnorm_of_a_zero_row_is_zero_with_a_finite_gradient():
    x = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    y = RMSNorm(4, eps=1e-6).double()(x)
    y.backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double())
    assert torch.equal(y.detach(), torch.zeros(1, 4).double())
    # dx = w · dy / sqrt(eps); eps's square root is rounded once
    torch.testing.assert_close(x.grad, torch.tensor([[1e3, 2e3, 3e3, 4e3]]).double())


def rotate_by_loops(x, positions, theta):
    y, d = x.clone(), x.shape[-1]
    for t, m in enumerate(positions):
        for i in range(d // 2):
            angle = m * theta ** (-2 * i / d)
            a, b = x[..., t, i], x[..., t, i + d // 2]
            y[..., t, i] = a * math.cos(angle) - b * math.sin(angle)
            y[..., t, i + d // 2] = b * math.cos(angle) + a * math.sin(angle)
    return y


@pytest.mark.parametrize("positions", [[0], [7], [3, 0, 5]])
def test_rope_turns_half_split_pairs(positions):
    config = PRESETS["nano"]  # heads of 16
    x = torch.randn(2, 3, len(positions), 16, generator=torch.Generator().manual_seed(0)).double()
    before = x.clone()
    table = rope_table(torch.tensor(positions), rope_frequencies(config), torch.float64)
    want = rotate_by_loops(x, positions, config.rope_theta)
    # The angles are float32: 7 rad rounds by 2.4e-7, times |x| up to 3.
    torch.testing.assert_close(rotate(x, *table), want, rtol=0, atol=3e-6)
    assert torch.equal(x, before)


def test_rotating_back_gives_the_input():
    table = rope_table(torch.arange(5), rope_frequencies(PRESETS["nano"]), torch.float64)
    x = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(0)).double()
    cos, sin = table
    torch.testing.assert_close(rotate(rotate(x, cos, sin), cos, -sin), x, rtol=0, atol=1e-6)


def test_stretched_frequencies_keep_the_fast_and_divide_the_slow():
    from dataclasses import replace

    scaling = RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192
    )
    plain = rope_frequencies(PRESETS["llama3-8b"])
    stretched = rope_frequencies(replace(PRESETS["llama3-8b"], rope_scaling=scaling))
    assert stretched[0] == plain[0]
    torch.testing.assert_close(stretched[-1], plain[-1] / 8, rtol=1e-6, atol=0)
    assert ((stretched <= plain) & (stretched >= plain / 8 * (1 - 1e-6))).all()
