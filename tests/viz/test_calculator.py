"""The memory calculator shows what labkit.cost counts. Oracles: cost.layout_memory, cost.memory."""

import re
from urllib.parse import unquote

import ipywidgets
import pytest

from labkit.cost.architecture import ARCHITECTURES
from labkit.cost.counting import num_parameters
from labkit.cost.hardware import DEVICES
from labkit.cost.layout import Layout
from labkit.cost.layout_memory import layout_memory
from labkit.cost.memory import FP32, MIXED, training_memory_bytes
from labkit.viz.calculator import (
    LEFT,
    OPTIMIZER_BYTES,
    PARTS,
    RIGHT,
    ROWS,
    WIDTH,
    bars_svg,
    calculator_alt,
    calculator_label,
    held_by_row,
    in_gigabytes,
    memory_calculator,
    recipe_of,
)

MODEL, DEVICE = ARCHITECTURES["llama3-8b"], DEVICES["h100"]
BATCH = (1, 8192)


def held(num_ranks=64, precision="mixed", optimizer="adamw", batch=BATCH):
    return held_by_row(MODEL, recipe_of(precision, optimizer), num_ranks, batch)


def rectangles(svg, colour):
    """Widths of the bars of a colour, the square of the legend left out."""
    found = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" [^>]*fill="(#\w+)"', svg)
    return [int(width) for _, y, width, fill in found if fill == colour and int(y) > 4]


@pytest.mark.parametrize(("precision", "oracle"), [("mixed", MIXED), ("fp32", FP32)])
def test_adamw_has_the_recipes_of_the_course(precision, oracle):
    recipe = recipe_of(precision, "adamw")
    assert recipe == oracle


def test_other_optimizers_keep_less():
    totals = [recipe_of("mixed", name).total_bytes for name in OPTIMIZER_BYTES]
    assert totals == [16, 12, 10]
    assert recipe_of("fp32", "momentum").optimizer_bytes == 4  # no copy of the weights


@pytest.mark.parametrize(("precision", "optimizer"), [("int3", "adamw"), ("mixed", "lion")])
def test_unknown_names_are_refused(precision, optimizer):
    with pytest.raises(ValueError, match=r"int3.*mixed, fp32|lion.*adamw, momentum, adamw8"):
        recipe_of(precision, optimizer)


def test_rows_are_those_of_the_layout():
    for (zero, recompute), memory in held(batch=(4, 8192)).items():
        layout = Layout(dp=64, zero=zero, recompute=recompute, micro_batch_size=4)
        assert memory == layout_memory(MODEL, layout, seq_len=8192, recipe=MIXED)


def test_states_follow_the_papers_formula():
    for (zero, _), memory in held().items():
        formula = training_memory_bytes(num_parameters(MODEL), stage=zero, group_size=64)
        assert memory.state_bytes == pytest.approx(formula.state_bytes, rel=1e-3)


def test_activations_grow_with_the_batch_and_not_with_ranks():
    few, many = held(num_ranks=8), held(num_ranks=512)
    four = held(batch=(4, 8192))
    for row in ROWS:
        assert few[row].activation_bytes == many[row].activation_bytes
        assert 3.9 < four[row].activation_bytes / few[row].activation_bytes <= 4


def test_bars_are_as_long_as_their_bytes():
    rows = held(num_ranks=8)
    svg = bars_svg(rows, DEVICE)
    scale = (WIDTH - LEFT - RIGHT) / max(memory.total_bytes for memory in rows.values())
    for field, _, colour in PARTS:
        expected = [scale * getattr(memory, field) for memory in rows.values()]
        assert rectangles(svg, colour) == pytest.approx(expected, abs=0.5)
    for memory in rows.values():
        assert f">{in_gigabytes(memory.total_bytes)}<" in svg


def test_line_stands_at_the_device_even_if_all_bars_are_short():
    rows = held_by_row(ARCHITECTURES["mini"], recipe_of("mixed", "adamw"), 8, (1, 512))
    svg = bars_svg(rows, DEVICE)
    assert f"M{WIDTH - RIGHT} " in svg
    assert "h100: 80 GB" in svg


def test_only_a_sum_that_fits_is_bold():
    rows = held()
    fitting = sum(memory.total_bytes <= DEVICE.memory_bytes for memory in rows.values())
    assert 0 < fitting < len(ROWS)
    assert bars_svg(rows, DEVICE).count('font-weight="bold"') == fitting


def test_label_names_the_rows_that_fit():
    rows = held()
    label = calculator_label(rows, DEVICE, "setting")
    assert label.startswith("setting. Fits into one h100: ")
    for (zero, recompute), memory in rows.items():
        name = f"ZeRO {zero}" + ("" if recompute == "none" else ", recomputed")
        said = re.search(rf"{name}(, ZeRO|$)", label) is not None
        assert said == (memory.total_bytes <= DEVICE.memory_bytes), name
    none = held(num_ranks=1, batch=(4, 8192))
    assert calculator_label(none, DEVICE, "setting") == "setting. No row fits into one h100"


def test_alt_says_every_sum():
    alt = calculator_alt(held(), "setting")
    for memory in held().values():
        assert in_gigabytes(memory.total_bytes) in alt


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(1.129e12, "1,129 GB"), (35.44e9, "35.4 GB"), (99.95e9, "100 GB")]
)
def test_gigabytes_have_no_exponent(num_bytes, text):
    assert in_gigabytes(num_bytes) == text


def panes(widget):
    """Every pane of a widget, each once."""
    if isinstance(widget, ipywidgets.HTML):
        return {widget.model_id: widget} if "<img" in widget.value else {}
    found = {}
    for child in getattr(widget, "children", ()):
        found |= panes(child)
    return found


def test_every_choice_has_a_frame():
    widget = memory_calculator({"mini": ARCHITECTURES["mini"]}, DEVICE, ranks=(1, 8))
    frames = panes(widget)
    assert len(frames) == 2 * 3 * 3 * 2
    for pane in frames.values():
        assert re.search(
            r'alt="Bars of the bytes that one rank holds. mini, [^"]{80,}"', pane.value
        )
        assert "h100: 80 GB" in unquote(pane.value)
