"""The roofline keeps its data, and a batch moves decode along the roof. Oracle: cost.roofline."""

import ipywidgets
import pytest

from labkit.cost.architecture import ARCHITECTURES
from labkit.cost.hardware import DEVICES
from labkit.cost.roofline import place_model, ridge_flops_per_byte
from labkit.viz.roofline import (
    LOOKS,
    draw_roofline,
    roofline_alt,
    roofline_explorer,
    roofline_label,
)
from labkit.viz.style import new_figure

MODEL, DEVICE = ARCHITECTURES["llama3-8b"], DEVICES["h100"]


def placed(batch_size):
    sizes = {"batch_size": batch_size, "seq_len": 1024}
    return {phase: place_model(MODEL, DEVICE, phase=phase, **sizes) for phase in LOOKS}


def drawn(batch_size):
    return draw_roofline(new_figure(3.8).add_subplot(), DEVICE, placed(batch_size))


def test_roof_rises_with_the_bandwidth_and_is_flat_at_the_peak():
    roof = drawn(1).lines[0]
    (left, ridge, right), (low, top, flat) = roof.get_xdata(), roof.get_ydata()
    assert low == pytest.approx(left * DEVICE.bandwidth_bytes_per_s / 1e12)
    assert top == pytest.approx(flat) == pytest.approx(DEVICE.flops_per_s("bf16") / 1e12)
    assert ridge == pytest.approx(ridge_flops_per_byte(DEVICE))
    assert left < ridge < right


@pytest.mark.parametrize("batch_size", [1, 64])
def test_every_product_is_a_mark_on_the_roof(batch_size):
    marks = {line.get_label(): line for line in drawn(batch_size).lines}
    for phase, products in placed(batch_size).items():
        line = marks[f"products of {phase}"]
        assert list(line.get_xdata()) == [each.intensity_flops_per_byte for each in products]
        reached = [each.attainable_flops_per_s / 1e12 for each in products]
        assert list(line.get_ydata()) == pytest.approx(reached)


def test_a_batch_moves_decode_to_the_right():
    def decode(batch_size):
        return min(each.intensity_flops_per_byte for each in placed(batch_size)["decode"])

    assert decode(1) < 1 < 50 < decode(64) < ridge_flops_per_byte(DEVICE)


def test_title_is_computed():
    worst = min(each.attainable_flops_per_s for each in placed(1)["decode"])
    share = f"{100 * worst / DEVICE.flops_per_s('bf16'):.3g} % in decode"
    assert share in drawn(1).get_title()
    assert "100 % of the peak in prefill" in drawn(1).get_title()


def test_label_and_alt_text():
    label = roofline_label(DEVICE, model="llama3-8b", batch_size=8, seq_len=1024)
    assert label == "llama3-8b on h100, batch of 8, prompts of 1,024 tokens, bf16"
    alt = roofline_alt(DEVICE, placed(8), label)
    assert label in alt
    assert "295 FLOP a byte" in alt


def test_explorer_holds_a_frame_for_every_choice():
    widget = roofline_explorer({"llama3-8b": MODEL}, [DEVICE], [1, 8], 1024)
    *rows, stack = widget.children
    assert [row.children[0].value for row in rows] == ["model", "device", "batch"]
    frames = stack.children[0].children[0].children
    assert len(frames) == 2
    assert all(isinstance(frame, ipywidgets.HTML) for frame in frames)
    assert "batch of 1," in frames[0].value
    assert "batch of 8," in frames[1].value
