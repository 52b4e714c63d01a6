"""Parameters, FLOPs and cache bytes from sizes alone.

Oracles: the instantiated model on the meta device and torch's FlopCounterMode around it, over
random configurations; torch.nn's own GPT layer; equations and figures of the papers.
"""

import random

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from labkit.cost.architecture import Architecture, architecture
from labkit.cost.counting import (
    FORMAT_BITS,
    attention_flops,
    forward_flops,
    kv_bytes_per_token,
    layer_parameters,
    model_bytes,
    num_parameters,
    product_parameters,
    training_flops,
    training_flops_per_token,
    weight_bytes,
)
from labkit.measure.log import EventLog
from labkit.model.attention import KVCache
from labkit.model.config import ModelConfig
from labkit.model.transformer import Transformer


def random_config(seed):
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    return ModelConfig(
        num_layers=rng.randint(1, 3),
        hidden_size=rng.choice([8, 24, 41]),
        intermediate_size=rng.choice([1, 16, 56]),
        num_heads=kv_heads * rng.choice([1, 2, 4]),
        num_kv_heads=kv_heads,
        head_dim=rng.choice([2, 8, 10]),
        vocab_size=rng.choice([3, 259]),
        max_seq_len=64,
        tied=rng.random() < 0.5,
        qk_norm=rng.random() < 0.5,
        attention_bias=rng.random() < 0.5,
    )


SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_parameters_are_those_of_the_instantiated_model(seed):
    config = random_config(seed)
    with torch.device("meta"):
        model = Transformer(config)
    sizes = Architecture.of(config)
    assert num_parameters(sizes) == sum(p.numel() for p in model.parameters())
    assert layer_parameters(sizes) == sum(p.numel() for p in model.layers[0].parameters())


def test_the_seeds_cover_every_switch():
    configs = [random_config(seed) for seed in SEEDS]
    for name in ("tied", "qk_norm", "attention_bias"):
        assert {getattr(config, name) for config in configs} == {False, True}
    assert any(config.num_heads == config.num_kv_heads for config in configs)
    assert any(config.num_heads > config.num_kv_heads > 1 for config in configs)


@pytest.mark.parametrize("seed", SEEDS)
def test_flops_are_those_that_torch_counts(seed):
    """Forward and backward, to the FLOP. The counter knows no mask: every pair counts."""
    config = random_config(seed)
    batch_size, seq_len = 1 + seed % 2, 5 + seed
    with torch.device("meta"):
        model = Transformer(config)
        tokens = torch.zeros(batch_size, seq_len, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(tokens)
        forward = counter.get_total_flops()
        logits.sum().backward()
    sizes, num_tokens = Architecture.of(config), batch_size * seq_len
    assert forward_flops(sizes, num_tokens, seq_len, causal=False) == forward
    total = counter.get_total_flops()
    assert training_flops(sizes, num_tokens, seq_len, causal=False) == total


def test_fused_attention_on_a_cpu_computes_as_much_forward():
    """torch's own registry counts 0 here; labkit's log has the formula."""
    config = random_config(2)
    with torch.no_grad(), EventLog() as log:
        Transformer(config)(torch.zeros(2, 7, dtype=torch.long))
    counted = sum(event.flops for event in log.events)
    assert forward_flops(Architecture.of(config), 14, 7, causal=False) == counted


@pytest.mark.parametrize("seed", range(6))
def test_kv_bytes_are_those_of_a_real_cache(seed):
    config = random_config(seed)
    cache = KVCache(config.num_layers)
    with torch.no_grad():
        Transformer(config)(torch.zeros(1, 9, dtype=torch.long), cache)
    held = sum(t.nbytes for t in (*cache.keys, *cache.values))
    assert kv_bytes_per_token(Architecture.of(config), 4) * 9 == held


@pytest.mark.parametrize(
    ("name", "kib"),
    [("qwen3-4b", 144), ("llama3-70b", 320), ("llama3-405b", 504), ("deepseek-v3", 68.625)],
)
def test_kv_cache_of_published_models(name, kib):
    assert kv_bytes_per_token(architecture(name)) == kib * 2**10


def test_llama_3_70b_a_token():
    model = architecture("llama3-70b")
    assert round(num_parameters(model) / 1e9, 2) == 70.55
    assert round(product_parameters(model) / 1e9, 2) == 69.50
    assert round(training_flops_per_token(model) / 1e9) == 417
    assert round(6 * num_parameters(model) / 1e9) == 423  # the rule of thumb
    attention = training_flops_per_token(model, 8192) - training_flops_per_token(model)
    assert attention == 6 * model.num_layers * 8192 * model.hidden_size


def test_gpt_3_took_the_flops_of_its_paper():
    """arXiv 2005.14165, table D.1: 3.14e23 for 300 billion tokens, without attention."""
    total = training_flops_per_token(architecture("gpt3-175b")) * 300e9
    assert total == pytest.approx(3.14e23, rel=0.002)


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-1t"])
def test_full_recomputation_is_narayanans_equation(name):
    """96·B·s·l·h²(1 + s/6h + V/16lh), arXiv 2104.04473, section 5.1; every pair counts."""
    model, B, s = architecture(name), 4, 2048
    L, D, V = model.num_layers, model.hidden_size, model.vocab_size
    layers = 96 * B * s * L * D * D + 16 * B * s * s * L * D
    flops = training_flops(model, B * s, s, causal=False, recompute="full")
    assert flops == layers + 6 * B * s * V * D


def test_selective_recomputation_runs_only_the_core_again():
    model = architecture("megatron-22b")
    plain, again = (training_flops(model, 2048, 2048, True, r) for r in ("none", "selective"))
    assert again - plain == attention_flops(model, 2048, 2048)


def test_a_layer_of_torch_has_as_many_weights_as_a_gpt_layer():
    model = Architecture(
        **dict(num_layers=1, hidden_size=24, intermediate_size=96, num_heads=3, num_kv_heads=3),
        **dict(head_dim=8, vocab_size=5, gated=False, biases=True),
    )
    layer = torch.nn.TransformerEncoderLayer(24, 3, 96, device="meta")
    assert layer_parameters(model) == sum(p.numel() for p in layer.parameters())


def test_only_the_experts_of_a_token_are_computed():
    model = architecture("mixtral-8x7b")
    expert = 3 * model.hidden_size * model.intermediate_size
    lookup = model.hidden_size * (model.vocab_size + 2 * model.num_layers + 1)
    idle = 6 * model.num_layers * expert
    assert product_parameters(model) == num_parameters(model) - idle - lookup


@pytest.mark.parametrize(
    ("number_format", "gigabytes"),
    [("fp32", 32), ("fp16", 16), ("bf16", 16), ("int8", 8), ("fp8", 8), ("int4", 4)],
)
def test_eight_billion_parameters(number_format, gigabytes):
    assert weight_bytes(8 * 10**9, number_format) == gigabytes * 10**9
    model = architecture("llama3-8b")
    assert (
        model_bytes(model, number_format) * 8 == num_parameters(model) * FORMAT_BITS[number_format]
    )


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match=r"'fp12'.*fp32.*int4"):
        weight_bytes(8, "fp12")
    with pytest.raises(ValueError, match=r"'some'.*none.*selective.*full"):
        training_flops(architecture("nano"), 4, 4, recompute="some")
