"""Prices. Oracles: published device hours and prices; sums by hand."""

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.counting import training_flops_per_token
from labkit.cost.hardware import device
from labkit.cost.price import (
    device_hours,
    million_tokens_price,
    request_price,
    training_days,
    training_price,
)


def test_the_hours_of_deepseek_v3_and_their_price():
    """arXiv 2412.19437, table 1: 2.788 million H800 hours at 2 dollars are 5.576 million."""
    flops = 2.788e6 * 3600 * 0.25 * 1e15
    assert device_hours(flops, 0.25, 1e15) == pytest.approx(2.788e6)
    assert training_price(flops, 0.25, 1e15, price_per_hour=2) == pytest.approx(5.576e6)


def test_the_hours_of_llama_3_405b_imply_a_plausible_utilization():
    """Model card: 30.84 million H100 hours, all in. 15.6e12 tokens of 8192, arXiv 2407.21783: the
    steps ran at 38 to 43 % MFU (table 4), so hours at 40 % are fewer, but not by much."""
    flops = training_flops_per_token(architecture("llama3-405b"), 8192) * 15.6e12
    hours = device_hours(flops, 0.40, device("h100").flops_per_s("bf16"))
    assert 0.85 < hours / 30.84e6 < 1


def test_days():
    assert training_days(24 * 16_384 * 10, 16_384) == 10
    with pytest.raises(ValueError, match="at least 1 device, got 0"):
        training_days(1, 0)


def test_a_million_tokens():
    # 8 devices at 3 an hour cost 24 an hour; at 1000 tokens a second it takes 1000 s.
    price = million_tokens_price(1000, num_devices=8, price_per_hour=3)
    assert price == pytest.approx(24 / 3.6)
    assert request_price(3000, 500, million_in_price=1, million_out_price=4) == 0.005


@pytest.mark.parametrize("utilization", [0, -0.1, 1.01])
def test_an_impossible_utilization_is_refused(utilization):
    with pytest.raises(ValueError, match=f"at most 1, got {utilization}"):
        device_hours(1e20, utilization, 1e15)


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0, got 0"):
        million_tokens_price(0, num_devices=1, price_per_hour=1)
    with pytest.raises(ValueError, match=r"above 0 FLOP/s, got 0"):
        device_hours(1, 0.5, 0)
