"""The picture of a fit keeps its records and its curves. Oracle: the law itself."""

import pytest

from labkit.cost.scaling_laws import ScalingLaw
from labkit.viz.scaling import draw_scaling, scaling_alt
from labkit.viz.style import new_figure

LAW = ScalingLaw(E=1.0, A=8, B=300, alpha=0.3, beta=0.45)
RECORDS = [(20_000, 800_000, 2.9), (20_000, 3_200_000, 2.6), (200_000, 800_000, 2.5)]
TARGET = (5_000_000, 3_200_000, 1.5)


def drawn():
    return draw_scaling(new_figure(4.6).add_subplot(), RECORDS, LAW, TARGET, "mini")


def points(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_records_are_marks_by_size():
    marks = {line.get_label(): points(line) for line in drawn().lines}
    assert marks["20,000 parameters"] == [(800_000, 2.9), (3_200_000, 2.6)]
    assert marks["200,000 parameters"] == [(800_000, 2.5)]


def test_curves_are_the_law():
    curves = [line for line in drawn().lines if len(line.get_xdata()) > 2]
    for line, size in zip(curves, (20_000, 200_000, 5_000_000), strict=True):
        assert all(y == LAW.loss(size, x) for x, y in points(line))
        assert line.get_xdata()[-1] == pytest.approx(3_200_000)
    assert len({(line.get_linestyle(), line.get_color()) for line in curves}) == 3


def test_prediction_and_measurement_stand_at_the_targets_tokens():
    marks = {line.get_label(): points(line) for line in drawn().lines}
    assert marks["mini, predicted"] == [(3_200_000, LAW.loss(*TARGET[:2]))]
    assert (3_200_000, 1.5) in [p for line in drawn().lines for p in points(line)]


def test_title_and_alt_text_say_the_error():
    predicted = LAW.loss(*TARGET[:2])
    error = f"{100 * (predicted / 1.5 - 1):+.1f} %".replace("-", "−")
    title = drawn().get_title()
    assert title == f"mini: predicted {predicted:.2f} bits a byte, measured 1.50 ({error})"
    alt = scaling_alt(RECORDS, LAW, TARGET, "mini")
    assert "3 records of 2 models of 20,000 to 200,000 parameters" in alt
    assert error in alt
