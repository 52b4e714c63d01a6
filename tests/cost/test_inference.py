"""Seconds of prefill and decode, and the batch that memory allows.

Oracles: torch's FLOP counter around the real model with its cache; the bytes of the tensors that
each rank of labkit's tensor parallelism would hold, by the rule of shares; sums by hand.
"""

import random
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from labkit.cost.architecture import Architecture, architecture
from labkit.cost.counting import model_bytes, num_parameters, product_parameters
from labkit.cost.hardware import device
from labkit.cost.inference import (
    Serving,
    decode_flops,
    decode_step_s,
    decode_tokens_per_s,
    largest_batch,
    prefill_flops,
    prefill_s,
    prefill_tokens_per_s,
)
from labkit.model.attention import KVCache
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

H100 = device("h100")
LLAMA_8B, LLAMA_70B = architecture("llama3-8b"), architecture("llama3-70b")


@pytest.mark.parametrize("preset", ["nano", "mini-mha"])
def test_decode_computes_what_torch_counts(preset):
    config = replace(PRESETS[preset], num_layers=2)
    with torch.device("meta"), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model, cache = Transformer(config), KVCache(2)
        model(torch.zeros(3, 10, dtype=torch.long), cache)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(3, 1, dtype=torch.long), cache)
    assert decode_flops(Architecture.of(config), 11, 3) == counter.get_total_flops()


def test_a_prompt_of_one_token_is_a_decode_step_with_half_the_scores():
    rest = prefill_flops(LLAMA_8B, 1) - 2 * product_parameters(LLAMA_8B)
    full = decode_flops(LLAMA_8B, 1) - 2 * product_parameters(LLAMA_8B)
    assert rest * 2 == full


def test_logits_of_a_prompt_are_computed_for_its_last_token():
    output = 2 * LLAMA_8B.hidden_size * LLAMA_8B.vocab_size
    with_all = prefill_flops(LLAMA_8B, 100) + 99 * output
    causal = 2 * 100 * 100 * LLAMA_8B.num_layers * LLAMA_8B.hidden_size
    assert with_all == 2 * 100 * product_parameters(LLAMA_8B) + causal


def test_one_answer_streams_weights_and_cache():
    """The rule of thumb: 16 GB at 3.35 TB/s, 4.5 ms for the weights of products alone."""
    serving = Serving(model=LLAMA_8B, device=H100)
    weights = 2 * product_parameters(LLAMA_8B)
    step = decode_step_s(serving, 8192)
    assert step == pytest.approx((weights + 8192 * 128 * 1024) / 3.35e12)
    assert round(weights / 3.35e12 * 1e3, 1) == 4.5


def test_prefill_is_bound_by_compute_and_a_large_batch_of_decode_too():
    serving = Serving(model=LLAMA_8B, device=H100)
    assert prefill_s(serving, 4096) == prefill_flops(LLAMA_8B, 4096) / 989.4e12
    step = decode_step_s(serving, 1, 2000)
    assert step == decode_flops(LLAMA_8B, 1, 2000) / 989.4e12
    assert decode_tokens_per_s(serving, 1, 2000) == 2000 / step
    assert prefill_tokens_per_s(serving, 4096) == 4096 / prefill_s(serving, 4096)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_keys_and_values_are_replicated_above_the_heads(tp):
    """mini: 2 KV heads of 8, so TP 4 and 8 hold as much cache a rank as TP 2."""
    model = replace(architecture("mini"), num_heads=16, head_dim=16)
    serving = Serving(model=model, device=H100, tp=tp)
    assert serving.kv_bytes_per_token == 2 * 2 * 16 * 8 * 2 / min(tp, 2)
    keys_values = model.num_layers * 2 * 2 * 16 * 256
    others = num_parameters(model) - keys_values
    assert serving.weight_bytes == pytest.approx(2 * (others / tp + keys_values / min(tp, 2)))


def test_eight_devices_stream_eight_times_as_fast_and_hold_a_larger_batch():
    one = Serving(model=LLAMA_70B, device=device("b200"))
    eight = replace(one, tp=8)
    assert decode_step_s(one, 4096) / decode_step_s(eight, 4096) == pytest.approx(8)
    room = 180e9 - model_bytes(LLAMA_70B, "bf16")
    assert largest_batch(one, 4096) == int(room // (4096 * 320 * 1024))
    assert largest_batch(eight, 4096) > 8 * largest_batch(one, 4096)


def test_the_batch_is_the_last_that_fits():
    serving = Serving(model=LLAMA_8B, device=H100)
    batch = largest_batch(serving, 8192, reserve_bytes=4e9)
    sequence = 8192 * serving.kv_bytes_per_token
    free = 80e9 - 4e9 - serving.weight_bytes
    assert batch * sequence <= free < (batch + 1) * sequence
    assert largest_batch(serving, 10**6) == 0
    assert largest_batch(replace(serving, kv_format="fp8"), 8192) >= 2 * batch


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_experts_that_nobody_needs_are_not_read(num_tokens):
    """Against drawing: 2 of 8 for each token, 4000 times."""
    model = architecture("mixtral-8x7b")
    serving = Serving(model=model, device=device("b200"))
    rng = random.Random(0)
    needed = sum(
        len({e for _ in range(num_tokens) for e in rng.sample(range(8), 2)}) for _ in range(4000)
    )
    expert = 3 * model.hidden_size * model.intermediate_size * model.num_layers
    dense = product_parameters(model) - 2 * expert
    expected = 2 * (dense + needed / 4000 * expert)
    assert serving.read_bytes(num_tokens) == pytest.approx(expected, rel=0.01)
    assert serving.read_bytes(10_000) == pytest.approx(2 * (dense + 8 * expert))


def test_a_latent_is_whole_on_every_device_and_the_scores_work_on_it():
    model = architecture("deepseek-v3")
    serving = Serving(model=model, device=device("h200"), tp=8, weight_format="fp8")
    assert serving.kv_bytes_per_token == 70_272
    scores = decode_flops(model, 2) - decode_flops(model, 1)
    assert scores == 2 * 61 * 128 * (576 + 512)


def test_fewer_bits_and_lower_shares():
    serving = Serving(model=LLAMA_8B, device=H100)
    int4 = replace(serving, weight_format="int4")
    assert int4.weight_bytes * 4 == serving.weight_bytes
    half = replace(serving, bandwidth_utilization=0.5)
    assert decode_step_s(half, 1) == 2 * decode_step_s(serving, 1)
    slow = replace(serving, compute_utilization=0.5)
    assert prefill_s(slow, 8192) == 2 * prefill_s(serving, 8192)


def test_what_does_not_fit_says_by_how_much():
    serving = Serving(model=LLAMA_70B, device=H100)
    with pytest.raises(ValueError, match=r"141\.1 GB a device at tp=1, and h100 has 80\.0"):
        largest_batch(serving, 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(tp=3), "32 heads over tp=3"),
        (dict(model=replace(LLAMA_8B, num_heads=12, num_kv_heads=6), tp=4), "6 KV heads over tp=4"),
        (dict(weight_format="fp12"), "'fp12'; known are fp32"),
        (dict(bandwidth_utilization=1.5), "at most 1, got 1.5"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(Serving(model=LLAMA_8B, device=H100), **change)
