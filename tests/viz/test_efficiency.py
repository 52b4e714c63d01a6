"""Efficiency curves keep their data, and the legend says how far each stays above 80 %. By hand."""

import pytest

from labkit.viz.efficiency import (
    draw_efficiency,
    efficiency_alt,
    efficiency_label,
    last_above,
    tensor_efficiency_alt,
    tensor_efficiency_label,
)
from labkit.viz.style import new_figure

RANKS = [1, 2, 4, 8]
CURVES = {
    "after": [1.0, 0.6, 0.5, 0.4],
    "overlapped": [1.0, 0.95, 0.8, 0.79],
    "int8": [1.0, 1.0, 0.99, 0.98],
}
SETTING = {"model": "mini", "tokens": 8192, "bytes_per_s": 10e9}


@pytest.mark.parametrize(("name", "last"), [("after", 1), ("overlapped", 4), ("int8", None)])
def test_last_number_of_ranks_above_the_bound(name, last):
    assert last_above(RANKS, CURVES[name]) == last


def test_only_the_first_fall_counts():
    assert last_above(RANKS, [1.0, 0.7, 0.9, 0.9]) == 1


def test_curves_keep_their_data_and_the_legend_names_the_knee():
    axes = draw_efficiency(new_figure(3).add_subplot(), RANKS, CURVES)
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == list(CURVES.values())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "after backward: under 80 % from 2 ranks on",
        "overlapped: 80 % up to 4 ranks",
        "overlapped, one byte each: 80 % beyond 8 ranks",
    ]
    assert len({line.get_linestyle() for line in axes.lines[:3]}) == 3  # told apart in grey


def test_axis_shows_whole_numbers_of_ranks_and_percent():
    axes = draw_efficiency(new_figure(3).add_subplot(), RANKS, CURVES)
    assert axes.xaxis.get_major_formatter()(8, 0) == "8"
    assert axes.yaxis.get_major_formatter()(0.8, 0) == "80%"


def test_label_and_alt_text_hold_the_setting_and_every_curve():
    label = efficiency_label(**SETTING)
    assert label == "mini, 8,192 tokens a rank, links of 10 GB a second"
    alt = efficiency_alt(RANKS, CURVES, **SETTING)
    assert label in alt
    for told in ("from 1 to 8 ranks", "overlapped: 80 % up to 4 ranks"):
        assert told in alt


def test_a_frame_about_tensor_parallelism_names_both_kinds_of_links():
    setting = {"model": "mini", "tokens": 8192, "fast": 400e9, "slow": 40e9}
    label = "mini, 8,192 tokens; fast links of 400 GB a second, slow ones of 40 GB"
    assert tensor_efficiency_label(**setting) == label
    curves = {"fast": CURVES["int8"], "nodes": CURVES["overlapped"], "slow": CURVES["after"]}
    alt = tensor_efficiency_alt(RANKS, curves, **setting)
    assert label in alt
    assert "fast links: 80 % beyond 8 ranks; fast links in nodes of eight: 80 % up to 4" in alt
    assert "slow links: under 80 % from 2 ranks on" in alt
