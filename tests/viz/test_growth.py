"""Pictures of the years hold the tables' values, and their titles what is computed from them."""

import math

import pytest

from labkit.cost.history import MEMORY_WALL, MODELS, gpu_series, gpus, gpus_to_hold
from labkit.viz.growth import (
    NAME_PLACES,
    compute_alt,
    draw_compute,
    draw_memory_wall,
    draw_parameters,
    memory_wall_alt,
    parameters_alt,
)
from labkit.viz.style import new_figure


def axes():
    return new_figure(4.4).add_subplot()


def drawn(picture):
    """(x, y) of every mark that belongs to a legend entry, by label."""
    return {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in picture.lines
        if not line.get_label().startswith("_")
    }


def test_every_model_is_drawn_where_the_table_says():
    marks = drawn(draw_parameters(axes(), MODELS, gpus()))
    dense = [(m.date, 16 * m.parameters / 1e9) for m in MODELS if not m.is_sparse]
    assert marks["model"] == dense
    sparse = [(m.date, 16 * m.parameters / 1e9) for m in MODELS if m.is_sparse]
    assert marks["model with experts"] == sparse


def test_one_gpu_a_year_with_the_most_memory():
    marks = drawn(draw_parameters(axes(), MODELS, gpus()))["memory of one GPU"]
    assert marks == [(2017, 32), (2020, 80), (2022, 80), (2023, 141), (2024, 180)]


def test_titles_are_computed():
    assert draw_parameters(axes(), MODELS, gpus()).get_title() == (
        "2018 to 2022: the largest models ×45 in two years;\na GPU's memory ×1.6"
    )
    fewer = [m for m in MODELS if m.date < 2020]
    assert "2018 to 2019" in draw_parameters(axes(), fewer, gpus()).get_title()
    assert "Llama 3 405B took" in draw_compute(axes(), MODELS, gpus()).get_title()
    wall = draw_memory_wall(axes(), gpu_series()).get_title()
    assert wall == "One GPU, 2017 to 2024: arithmetic ×18,\nmemory bandwidth ×8.9, links ×6"


def test_compute_leaves_out_models_whose_tokens_are_not_known():
    marks = drawn(draw_compute(axes(), MODELS, gpus()))
    assert len(marks["model"]) == sum(
        m.training_flops is not None and not m.is_sparse for m in MODELS
    )
    year = dict(marks["one GPU, a year at its peak"])[2017]
    assert year == pytest.approx(125e12 * 365.25 * 86_400)


def test_lines_of_the_memory_wall_have_the_papers_slope():
    picture = draw_memory_wall(axes(), gpu_series())
    lines = [line for line in picture.lines if line.get_label().startswith("_")]
    for line, rate in zip(lines, MEMORY_WALL.values(), strict=True):
        (first, last), (start, end) = line.get_xdata(), line.get_ydata()
        assert math.log(end / start) / (last - first) == pytest.approx(math.log(rate) / 2)
    assert len({line.get_linestyle() for line in lines}) == 3  # told apart in grey


def test_alt_texts_name_every_model_and_every_rate():
    told = parameters_alt(MODELS, gpus())
    assert all(m.name in told for m in MODELS)
    gpt3 = next(m for m in MODELS if m.name == "GPT-3")
    assert f"GPT-3 {gpus_to_hold(gpt3):.2g}" in told
    assert "GPT-3 80 (v100)" in compute_alt(MODELS)
    assert "line ×3.0" in memory_wall_alt(gpu_series())


def test_names_are_placed_for_models_of_the_table():
    assert set(NAME_PLACES) <= {m.name for m in MODELS}


@pytest.mark.parametrize("draw", [draw_parameters, draw_compute])
def test_no_two_names_lie_on_each_other(draw):
    figure = new_figure(4.4)
    picture = draw(figure.add_subplot(), MODELS, gpus())
    figure.draw_without_rendering()
    names = {m.name for m in MODELS}
    boxes = [t.get_window_extent() for t in picture.texts if t.get_text() in names]
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
    assert not any(a.overlaps(b) for a, b in pairs)
