"""Products under a roofline.

Oracles: torch tensors of these sizes and torch's FLOP counter; the roof drawn point by point.
"""

import random

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from labkit.cost.architecture import architecture
from labkit.cost.counting import product_parameters
from labkit.cost.hardware import device
from labkit.cost.roofline import (
    attainable_flops_per_s,
    intensity_flops_per_byte,
    layer_products,
    place,
    place_model,
    product_bytes,
    product_flops,
    ridge_flops_per_byte,
    streaming_time_s,
    time_s,
)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_flops_and_bytes_are_those_of_real_tensors(seed, dtype):
    rng = random.Random(seed)
    M, K, N = (rng.randint(1, 200) for _ in range(3))
    x, w = torch.empty(M, K, dtype=dtype, device="meta"), torch.empty(K, N, dtype=dtype)
    with FlopCounterMode(display=False) as counter:
        y = x @ w.to("meta")
    assert product_flops(M, K, N) == counter.get_total_flops()
    moved = x.nbytes + w.nbytes + y.nbytes
    assert product_bytes(M, K, N, dtype.itemsize) == moved
    assert intensity_flops_per_byte(M, K, N, dtype.itemsize) == counter.get_total_flops() / moved


def test_the_ridges_of_two_devices():
    assert ridge_flops_per_byte(device("a100-80")) == pytest.approx(312 / 2.039)
    assert round(ridge_flops_per_byte(device("h100"))) == 295
    assert ridge_flops_per_byte(device("h100"), "fp8") == pytest.approx(1978.9 / 3.35)


def test_the_roof_is_the_slope_and_then_flat():
    h100 = device("h100")
    ridge = ridge_flops_per_byte(h100)
    assert attainable_flops_per_s(h100, 1.0) == h100.bandwidth_bytes_per_s
    assert attainable_flops_per_s(h100, ridge / 2) == h100.flops_per_s("bf16") / 2
    assert attainable_flops_per_s(h100, ridge * 9) == h100.flops_per_s("bf16")


def test_the_output_counts():
    """A product that is thin inside writes most of its bytes."""
    h100 = device("h100")
    thin = place(h100, 4096, 300, 4096)
    read = 2 * (4096 * 300 + 300 * 4096)
    assert thin.work_flops / read > ridge_flops_per_byte(h100)  # without the output
    assert not thin.compute_bound
    assert thin.time_s == thin.moved_bytes / h100.bandwidth_bytes_per_s


@pytest.mark.parametrize("rows", [1, 64, 294, 512, 4096])
def test_seconds_times_attainable_is_the_work(rows):
    placed = place(device("h100"), rows, 8192, 28_672)
    assert placed.time_s * placed.attainable_flops_per_s == pytest.approx(placed.work_flops)
    assert placed.time_s == time_s(device("h100"), placed.work_flops, placed.moved_bytes)
    assert placed.compute_bound == (placed.attainable_flops_per_s == 989.4e12)


def test_decode_has_as_many_flops_a_byte_as_rows_and_prefill_is_bound_by_compute():
    model, h100 = architecture("llama3-70b"), device("h100")
    decode = place_model(model, h100, batch_size=1, seq_len=4096, phase="decode")
    assert all(placed.intensity_flops_per_byte == pytest.approx(1, rel=2e-3) for placed in decode)
    prefill = place_model(model, h100, batch_size=1, seq_len=4096, phase="prefill")
    assert all(placed.compute_bound for placed in prefill)
    assert not any(placed.compute_bound for placed in decode)


@pytest.mark.parametrize("name", ["mini", "qwen3-4b", "megatron-22b"])
def test_the_products_hold_all_weights_that_are_in_products(name):
    model = architecture(name)
    sizes = layer_products(model, 1)
    _, inner, columns = sizes.pop("output")
    layer = sum(K * N for _, K, N in sizes.values())
    assert model.num_layers * layer + inner * columns == product_parameters(model)


def test_seventy_billion_weights_from_one_and_from_eight():
    held = 70e9 * 2
    one, eight = (streaming_time_s(held, device("h100"), n) for n in (1, 8))
    assert round(one * 1e3, 1) == 41.8
    assert round(eight * 1e3, 2) == 5.22


def test_what_cannot_be_is_refused():
    h100 = device("h100")
    with pytest.raises(ValueError, match=r"at least 1, got 4, 0, 2"):
        place(h100, 4, 0, 2)
    with pytest.raises(ValueError, match=r"'middle'.*prefill.*decode"):
        place_model(architecture("mini"), h100, batch_size=1, seq_len=4, phase="middle")
    with pytest.raises(ValueError, match=r"8 experts.*0 and 0"):
        layer_products(architecture("mixtral-8x7b"), 1)
    with pytest.raises(ValueError, match="got 0"):
        streaming_time_s(1, h100, 0)
