"""Tables of models and chips: rates by hand, and rows against what other rows and papers say."""

import math

import pytest

from labkit.cost.hardware import DEVICES
from labkit.cost.history import (
    MEMORY_WALL,
    MODELS,
    gpu_before,
    gpu_series,
    gpu_years,
    gpus,
    gpus_to_hold,
    growth_in_two_years,
    record_holders,
)

BY_NAME = {model.name: model for model in MODELS}


def test_growth_of_an_exact_doubling_a_year():
    assert growth_in_two_years([(2000, 1), (2001, 2), (2003, 8)]) == pytest.approx(4)


def test_growth_is_the_line_through_logarithms_not_the_ends():
    points = [(0, 1), (1, 4), (2, 4)]
    slope = math.log(4) / 2  # least squares of 0, ln 4, ln 4
    assert growth_in_two_years(points) == pytest.approx(math.exp(2 * slope))
    assert growth_in_two_years([(0, 1), (1, 9), (2, 1)]) == pytest.approx(1)


def test_growth_needs_two_years():
    with pytest.raises(ValueError, match="3 points in one year"):
        growth_in_two_years([(2020, 1), (2020, 2), (2020, 3)])


def test_the_papers_rates_over_twenty_years():
    """Its figure 1 says 60,000, 100 and 30 times in twenty years."""
    for name, told in (("flops", 60_000), ("bandwidth", 100), ("interconnect", 30)):
        assert MEMORY_WALL[name] ** 10 == pytest.approx(told, rel=0.15)


def test_every_row_has_a_source_and_the_table_is_by_date():
    assert all(model.source for model in MODELS)
    assert [m.date for m in MODELS] == sorted(m.date for m in MODELS)
    assert all(model.active_parameters <= model.parameters for model in MODELS)


@pytest.mark.parametrize("name", ["GPT-3", "Llama 3 405B"])
def test_printed_compute_is_six_flops_a_parameter_and_token(name):
    model = BY_NAME[name]
    rule = 6 * model.parameters * model.tokens
    assert model.training_flops == model.printed_flops == pytest.approx(rule, rel=0.01)


def test_gophers_compute_is_near_chinchillas():
    """Chinchilla was trained with Gopher's budget; 6·N·D leaves attention out of both."""
    ratio = BY_NAME["Chinchilla"].training_flops / BY_NAME["Gopher"].training_flops
    assert ratio == pytest.approx(1, abs=0.2)


def test_compute_counts_only_what_a_token_meets():
    assert BY_NAME["DeepSeek-V3"].training_flops == 6 * 37e9 * 14.8e12
    assert BY_NAME["DeepSeek-V3"].is_sparse
    assert not BY_NAME["GPT-3"].is_sparse
    assert BY_NAME["GPT-2"].training_flops is None


def test_record_holders_grow_and_are_dense():
    held = record_holders()
    sizes = [model.parameters for model in held]
    assert sizes == sorted(set(sizes))
    assert {"BERT-Large", "GPT-3", "PaLM"} <= {model.name for model in held}
    assert not {"Chinchilla", "DeepSeek-V3"} & {model.name for model in held}


def test_a_model_is_set_beside_a_gpu_of_an_earlier_year():
    assert gpu_before(2020.4).name == "v100"  # the A100 is of 2020
    assert gpu_before(2021.9).name == "a100-80"  # not the one with 40 GB
    with pytest.raises(ValueError, match=r"no GPU before 2017; the first in the table is of 2017"):
        gpu_before(2017.9)


def test_gpus_that_a_training_state_fills():
    assert gpus_to_hold(BY_NAME["GPT-3"]) == pytest.approx(16 * 175 / 32)
    assert gpus_to_hold(BY_NAME["GPT-3"], 2) == pytest.approx(2 * 175 / 32)


def test_years_of_a_gpu():
    year = DEVICES["v100"].flops_per_s("fp16") * 365.25 * 86_400
    assert gpu_years(3 * year, DEVICES["v100"]) == pytest.approx(3)


def test_series_hold_every_gpu_and_models_outgrow_them():
    series = gpu_series()
    assert all(
        [year for year, _ in points] == [g.year for g in gpus()] for points in series.values()
    )
    memory = growth_in_two_years(series["memory"])
    models = growth_in_two_years((m.date, m.parameters) for m in record_holders())
    assert 1 < memory < 2 < 20 < models
    assert growth_in_two_years(series["flops"]) > growth_in_two_years(series["bandwidth"])
    assert growth_in_two_years(series["bandwidth"]) > growth_in_two_years(series["interconnect"])
