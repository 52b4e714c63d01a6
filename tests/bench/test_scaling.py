"""Runs of small models: what a record holds, that a stop loses nothing, and the recorded fit.

Oracle: a run without a stop; the model cards; the fit made anew from the recorded losses.
"""

import math
from dataclasses import replace

import pytest

from labkit.bench import scaling
from labkit.bench.scaling import (
    CARD,
    CHOICES,
    RUNS,
    SCORE,
    SHAPES,
    Run,
    card_score,
    num_non_embedding,
    prediction,
    record_of,
    scaling_run,
    train_all,
)
from labkit.cost.architecture import Architecture
from labkit.cost.counting import training_flops
from labkit.cost.scaling_laws import ScalingLaw
from labkit.measure.record import load
from labkit.model.config import PRESETS
from labkit.model.corpus import Corpus
from labkit.train.recipes import RECIPES
from labkit.train.trainer import TrainSettings, train

TEXT = Corpus(
    name="tiny",
    train={"a": b"to be or not to be, that is the question. " * 40},
    held_out={"b": b"to be or to be not. " * 4},
)
CONFIG = replace(SHAPES["w32"], num_layers=1, hidden_size=8, head_dim=4, max_seq_len=160)
SETTINGS = TrainSettings(steps=6, batch_size=2, seq_len=32, warmup_steps=2, precision="fp32")
TINY = Run(name="tiny", config=CONFIG, settings=SETTINGS)


@pytest.fixture(scope="module")
def recorded():
    return load("scaling")["result"]


def test_a_record_holds_what_a_fit_needs(tmp_path):
    (row,) = train_all([TINY], TEXT, tmp_path, lambda line: None)
    assert row["tokens"] == 6 * 2 * 32
    assert row["non_embedding_parameters"] == row["parameters"] - 2 * 259 * 8
    assert row["training_flops"] == training_flops(Architecture.of(CONFIG), row["tokens"], 32)
    assert 0 < row[SCORE] < 9
    assert row["settings"]["steps"] == 6


def test_a_finished_run_is_read_and_a_changed_one_refused(tmp_path, monkeypatch):
    first = record_of(TINY, TEXT, tmp_path)
    monkeypatch.setattr(scaling, "train", None)  # would fail if it were called
    assert record_of(TINY, TEXT, tmp_path) == first
    other = replace(TINY, settings=replace(SETTINGS, lr=1.0))
    with pytest.raises(ValueError, match="other settings; remove the folder"):
        record_of(other, TEXT, tmp_path)


def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "SAVE_EVERY", 2)
    whole = record_of(TINY, TEXT, tmp_path / "whole")

    def stopped(*arguments):
        for result in train(*arguments):
            if result.step == 4:
                raise KeyboardInterrupt
            yield result

    with monkeypatch.context() as patch:
        patch.setattr(scaling, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            record_of(TINY, TEXT, tmp_path / "stopped")
    again = record_of(TINY, TEXT, tmp_path / "stopped")
    assert again[SCORE] == whole[SCORE]
    assert again["train_nats_last_20"] == whole["train_nats_last_20"]


def test_rates_go_through_both_recipes():
    assert scaling_run("w64", 800).settings.lr == pytest.approx(RECIPES["nano"].lr)
    assert all(run.settings.batch_size == RECIPES["mini"].batch_size for run in RUNS)
    assert len({run.name for run in RUNS}) == 6
    assert len({run.tokens for run in RUNS}) > 1


def test_parameters_of_mini():
    assert num_non_embedding(PRESETS["mini"]) == 5_773_056 - 2 * 259 * 256


def test_the_score_is_the_cards():
    assert card_score(CARD.read_text()) == 2.280
    with pytest.raises(ValueError, match="has no line"):
        card_score("# mini")


def test_the_choice_is_made_without_the_target(monkeypatch):
    """Another measured loss of the target changes errors, never laws or the choice."""
    law = ScalingLaw(E=1.0, A=8, B=300, alpha=0.3, beta=0.45)
    sizes = [(num_non_embedding(run.config), run.tokens) for run in RUNS]
    rows = [{"non_embedding_parameters": n, "tokens": d, SCORE: law.loss(n, d)} for n, d in sizes]
    first = prediction(rows)
    assert abs(first["fits"]["all free"][SCORE] / law.loss(5_640_448, 3_276_800) - 1) < 1e-3
    monkeypatch.setattr(scaling, "card_score", lambda card: 1.0)
    second = prediction(rows)
    assert second["chosen"] == first["chosen"]
    assert all(second["fits"][c]["law"] == first["fits"][c]["law"] for c in CHOICES)


def test_recorded_runs_are_those_of_the_code(recorded):
    known = {(run.name, run.tokens) for run in RUNS}
    rows = recorded["records"]
    assert {(row["model"], row["tokens"]) for row in rows} <= known
    assert {row["model"] for row in rows} == set(SHAPES)
    assert all(row["settings"]["precision"] == "bf16" for row in rows)
    assert all(1.5 < row[SCORE] < 4 and math.isfinite(row[SCORE]) for row in rows)


def test_recorded_fit_is_that_of_the_recorded_losses(recorded):
    again = prediction(recorded["records"])
    assert again["chosen"] == recorded["chosen"]
    for name, found in recorded["fits"].items():
        assert again["fits"][name][SCORE] == pytest.approx(found[SCORE], rel=1e-6)
    assert recorded["target"][SCORE] == card_score(CARD.read_text())


def test_recorded_prediction_is_within_five_percent(recorded):
    """Every choice, and the chosen one; none of them saw the target."""
    assert recorded["chosen"] in CHOICES
    assert all(abs(found["relative_error"]) < 0.05 for found in recorded["fits"].values())
