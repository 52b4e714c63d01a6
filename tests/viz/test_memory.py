"""Bars of training memory keep their data; the paper's row is marked. By hand."""

from itertools import pairwise

import pytest

from labkit.cost.memory import AUTOCAST, FP32, MIXED, training_memory_bytes
from labkit.viz import memory as viz
from labkit.viz.style import new_figure
from tests.viz.test_style import luminance

PAPER = dict(num_parameters=7_500_000_000, group_size=64, recipe=MIXED)


def by_stage(num_parameters, group_size, recipe, activation_bytes=0):
    sizes = dict(group_size=group_size, recipe=recipe, activation_bytes=activation_bytes)
    return {s: training_memory_bytes(num_parameters, stage=s, **sizes) for s in range(4)}


def drawn(**options):
    axes = new_figure(3).add_subplot()
    stages = by_stage(**PAPER, activation_bytes=2_000_000_000)
    return viz.draw_training_memory(axes, stages, **options)


def test_bars_stack_to_the_total_and_the_sum_stands_above():
    axes = drawn()
    stages = by_stage(**PAPER, activation_bytes=2_000_000_000)
    for stage, memory in stages.items():
        bars = [bar for bar in axes.patches if round(bar.get_x() + 0.35) == stage]
        assert len(bars) == 4
        assert max(bar.get_y() + bar.get_height() for bar in bars) == pytest.approx(
            memory.total_bytes / 1e9
        )
    assert [text.get_text() for text in axes.texts] == ["122 GB", "33.4 GB", "18.6 GB", "3.88 GB"]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["parameters", "gradients", "optimizer state", "activations"]
    assert axes.get_title() == "122 GB on one rank; with everything sharded, 3.88 GB"


def test_the_papers_row_is_marked_with_its_numbers():
    axes = new_figure(3).add_subplot()
    viz.draw_training_memory(axes, by_stage(**PAPER), mark_paper=True)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["parameters", "gradients", "optimizer state"]  # without activations
    assert axes.get_title() == "figure 1 of the ZeRO paper: 120 / 31.4 / 16.6 / 1.9 GB"
    assert viz.is_papers_row(**PAPER)
    assert not viz.is_papers_row(**PAPER | {"group_size": 32})
    assert not viz.is_papers_row(**PAPER | {"num_parameters": 7_000_000_000})
    assert not viz.is_papers_row(**PAPER | {"recipe": FP32})


def test_frames_share_an_axis_and_a_budget_is_a_line():
    assert drawn(top_bytes=200e9).get_ylim()[1] == pytest.approx(224)
    axes = drawn(budget_bytes=80e9)
    assert axes.lines[0].get_ydata()[0] == 80
    assert "memory of a device: 80 GB" in [t.get_text() for t in axes.get_legend().get_texts()]
    assert drawn(budget_bytes=500e9).get_ylim()[1] == pytest.approx(560)


def test_categories_differ_in_grey():
    fills = (viz.PARAMETERS, viz.GRADIENTS, viz.OPTIMIZER, viz.ACTIVATIONS)
    levels = sorted(map(luminance, fills))
    assert min(b - a for a, b in pairwise(levels)) >= 0.2


@pytest.mark.parametrize("recipe", [MIXED, FP32, AUTOCAST])
def test_label_and_alt_text_hold_the_setting_and_every_stage(recipe):
    setting = dict(num_parameters=1000, group_size=1, recipe=recipe)
    label = viz.training_memory_label(**setting)
    assert label.startswith("1,000 parameters, 1 rank, ")
    alt = viz.training_memory_alt(by_stage(**setting), **setting)
    assert label in alt
    assert all(f"Stage {stage}: 16 kB" in alt for stage in range(4))
    assert "activations" not in alt  # none were given
    assert "64 ranks, mixed precision" in viz.training_memory_label(**PAPER)
