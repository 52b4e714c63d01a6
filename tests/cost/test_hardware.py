"""The table of devices and links.

Oracles: ratios that makers state between formats, and figures worked out from lanes, clocks and
widths.
"""

import pytest

from labkit.cost.hardware import DEVICES, LINKS, device, link


def test_the_devices_of_the_course_are_there():
    names = {"v100", "a100-40", "a100-80", "h100", "h200", "b200", "mi300x", "rtx4090", "l4"}
    assert names | {"ascend-910b3", "laptop-cpu"} == set(DEVICES)
    assert {name for name, each in DEVICES.items() if each.reported} == {
        "ascend-910b3",
        "laptop-cpu",
    }


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_source_and_a_link(name):
    each = device(name)
    assert each.name == name
    assert each.source
    assert each.link in LINKS
    assert 2017 <= each.year <= 2025
    assert 10**10 <= each.memory_bytes < 10**12
    assert all(isinstance(rate, int) and rate > 0 for rate in each.peak_flops_per_s.values())


@pytest.mark.parametrize("name", set(DEVICES) - {"rtx4090", "laptop-cpu", "ascend-910b3", "v100"})
def test_half_the_bits_are_twice_the_rate_and_sparsity_is_nowhere(name):
    rates = device(name).peak_flops_per_s
    assert rates["fp16"] / rates["tf32"] == pytest.approx(2, rel=0.03)
    assert rates["int8"] / rates["fp16"] == pytest.approx(2, rel=0.01)
    assert rates.get("fp8", rates["int8"]) == rates["int8"]


@pytest.mark.parametrize("name", [name for name in DEVICES if name not in ("laptop-cpu", "v100")])
def test_the_two_formats_of_16_bits_have_one_rate(name):
    assert device(name).flops_per_s("bf16") == device(name).flops_per_s("fp16")


@pytest.mark.parametrize(
    ("name", "multiprocessors", "flops_a_cycle", "hertz"),
    [
        ("v100", 80, 1024, 1.53e9),  # 8 tensor cores of 64 multiply-adds
        ("a100-80", 108, 2048, 1.41e9),
        ("h100", 132, 4096, 1.83e9),
        ("rtx4090", 128, 512, 2.52e9),
        ("ascend-910b3", 20, 8192, 1.91e9),  # 20 cores of a 16·16·16 cube
        ("mi300x", 304, 2048, 2.1e9),
    ],
)
def test_the_dense_peak_is_units_times_width_times_clock(
    name, multiprocessors, flops_a_cycle, hertz
):
    rate = multiprocessors * flops_a_cycle * hertz
    assert device(name).flops_per_s("fp16") == pytest.approx(rate, rel=0.01)


def test_the_laptop_is_cores_times_width_times_clock():
    laptop = device("laptop-cpu")
    assert laptop.flops_per_s("fp32") == 8 * 32 * 3_300_000_000
    assert laptop.bandwidth_bytes_per_s == 2 * 8 * 5_600_000_000  # two channels of 8 bytes


def test_a_link_is_one_direction():
    assert link("nvlink4").bandwidth_bytes_per_s == 18 * 25e9  # links of 25 GB/s each way
    assert link("nvlink3").bandwidth_bytes_per_s == 12 * 25e9
    assert link("nvlink5").bandwidth_bytes_per_s == 18 * 50e9
    assert link("pcie4").bandwidth_bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert link("pcie5").bandwidth_bytes_per_s == 2 * link("pcie4").bandwidth_bytes_per_s
    assert link("infiniband-ndr").bandwidth_bytes_per_s == 400e9 / 8
    assert link("ethernet-1g").bandwidth_bytes_per_s == 1e9 / 8


@pytest.mark.parametrize("name", LINKS)
def test_every_link_has_a_source(name):
    each = link(name)
    assert each.name == name
    assert each.source
    assert each.latency_s is None or 1e-7 < each.latency_s < 1e-4


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'h1000'.*a100-80.*h100.*l4"):
        device("h1000")
    with pytest.raises(ValueError, match=r"'rope'.*infiniband-ndr.*nvlink4"):
        link("rope")
    with pytest.raises(ValueError, match=r"a100-80.*'fp8'.*bf16.*int8"):
        device("a100-80").flops_per_s("fp8")
