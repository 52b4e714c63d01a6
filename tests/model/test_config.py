"""Presets have the published sizes; sizes that do not fit are refused with both numbers."""

import pytest
import torch

from labkit.model.config import PRESETS, ModelConfig
from labkit.model.transformer import Transformer

SHAPE = dict(
    num_layers=1,
    hidden_size=8,
    intermediate_size=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=11,
    max_seq_len=16,
)


def num_parameters(name):
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(PRESETS[name]).parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [  # the course's own by hand; Llama 3 and Qwen3 as transformers counts the published shapes
        ("mini", 5_773_056),
        ("mini-mha", 6_559_488),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("qwen3-4b", 4_022_468_096),
    ],
)
def test_parameter_counts(name, published):
    assert num_parameters(name) == published


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_heads=3), "3 query heads do not divide over 2 KV heads"),
        (dict(head_dim=3), "head_dim 3 is odd"),
        (dict(num_layers=0), "num_layers is 0"),
        (dict(num_experts=4, top_k=5), "top_k 5 of 4 experts: choose 1 to 4"),
        (dict(num_experts=4), "top_k 0 of 4 experts: choose 1 to 4"),
        (dict(num_experts=4, top_k=-1), "top_k -1 of 4 experts"),
        (dict(num_experts=-4, top_k=2), "top_k 2 of -4 experts"),
        (dict(top_k=2), "top_k 2 and balancing False with num_experts 0"),
        (dict(balancing=True), "top_k 0 and balancing True with num_experts 0"),
    ],
)
def test_sizes_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**SHAPE | change)


def test_an_unknown_name_fails():
    with pytest.raises(TypeError, match="num_head"):
        ModelConfig(**SHAPE, num_head=4)
