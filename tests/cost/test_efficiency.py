"""The law of a device's products.

Promised: it rises with intensity, saturates at the fitted share, and never beats the roofline.
Oracles: the closed form in the docstring, and labkit.cost.roofline.
"""

import pytest

from labkit.cost.efficiency import (
    EFFICIENCY,
    MEMORY_SHARE,
    attained_share,
    bytes_s,
    efficiency,
    flops_s,
    peak_flops_per_s,
    product_s,
)
from labkit.cost.hardware import DEVICES, device

A100 = device("a100-80")
LAW = EFFICIENCY["a100-80"]
SHAPES = ((2048, 12_288, 4608), (8192, 6144, 768), (1, 4096, 4096), (3, 41, 5))


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_attained_is_the_closed_form(rows, inner, columns):
    flops = 2 * rows * inner * columns
    intensity = flops / (2 * (rows * inner + inner * columns + rows * columns))
    ridge = 312e12 / (MEMORY_SHARE * 2039e9)
    a = LAW.peak_share
    expected = a * intensity / (intensity + a * ridge)
    assert attained_share(rows, inner, columns, A100, LAW) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES)
def test_no_product_beats_the_roofline(rows, inner, columns):
    arithmetic_s = 2 * rows * inner * columns / 312e12
    memory_s = 2 * (rows * inner + inner * columns + rows * columns) / 2039e9
    assert product_s(rows, inner, columns, A100, LAW) > max(arithmetic_s, memory_s)


def test_it_rises_with_size_and_saturates():
    shares = [attained_share(n, n, n, A100, LAW) for n in (64, 512, 4096, 32_768, 2**20)]
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[-1] == pytest.approx(LAW.peak_share, rel=1e-3)


def test_a_device_without_a_fit_gets_the_mean_and_says_so():
    guess = efficiency(device("b200"))
    shares = [each.peak_share for each in EFFICIENCY.values()]
    assert guess.peak_share == pytest.approx(sum(shares) / len(shares))
    assert guess.fitted_on == ""
    assert all(efficiency(device(name)).fitted_on for name in EFFICIENCY)


def test_every_device_has_a_peak_to_count_with():
    for each in DEVICES.values():
        assert peak_flops_per_s(each) > 0
    assert peak_flops_per_s(device("laptop-cpu")) == device("laptop-cpu").flops_per_s("fp32")


def test_seconds_by_hand():
    assert flops_s(312e12 * LAW.peak_share, A100, LAW) == pytest.approx(1)
    assert bytes_s(2039e9 * MEMORY_SHARE, A100) == pytest.approx(1)
