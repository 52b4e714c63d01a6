"""train and generate as a user calls them: run, interrupt, resume, card, scores, bad input."""

import json
import re
import signal
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from labkit.cli import main
from labkit.model.checkpoint import load_checkpoint
from labkit.model.files import read_safetensors
from labkit.train.resume import STATE

SMALL = ["--model", "nano", "--batch-size", "2", "--seq-len", "32"]


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.txt").write_text(f"{name} fish, red fish, blue fish. " * 40)
    return folder


def test_a_run_writes_a_model_a_config_and_a_card(tmp_path, corpus):
    out = tmp_path / "run"
    result = run("train", *SMALL, "--steps", 4, "--out", out, "--corpus", corpus)
    assert result.exit_code == 0, result.output
    score = re.search(r"held-out bits a byte, this model: (\d\.\d+)", result.output).group(1)
    card = (out / "README.md").read_text()
    assert f"| Held-out bits a byte, this model | {score} |" in card
    assert "seed = 0" in card
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    text = run("generate", "--model", out, "--prompt", "one\\n", "--max-new-tokens", 5)
    assert text.exit_code == 0, text.output
    assert text.output.startswith("one\n")


def test_an_interrupted_run_resumes_to_the_same_weights(tmp_path, corpus):
    """Ctrl-C in a real process; what was done is kept, and the end is bitwise that of one run."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = [*SMALL, "--steps", "150", "--corpus", str(corpus), "--precision", "fp32"]
    assert run("train", *options, "--out", whole).exit_code == 0
    command = [sys.executable, "-u", "-m", "labkit", "train", *options, "--out", str(cut)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not re.search(r"\| \d+/150 .*loss", process.stderr.readline(200) or "end"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(timeout=60) == 0
    done = len(json.loads(read_safetensors(cut / STATE)[1]["losses"]))
    assert 0 < done < 150
    assert not (cut / "model.safetensors").exists()
    assert run("train", *options, "--out", cut).exit_code == 2  # never overwritten without --resume
    assert run("train", *options, "--out", cut, "--resume").exit_code == 0
    for p, q in zip(
        load_checkpoint(whole).parameters(), load_checkpoint(cut).parameters(), strict=True
    ):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["train", "--model", "giant"],
            "no recipe for 'giant'; there are mini, mini-mha, mini-moe, nano",
        ),
        (["train", "--corpus", "/no/such/folder"], "no folder /no/such/folder"),
        (["train", "--steps", "0"], "steps is 0"),
        (["train", "--corpus", "pydoc", "--seq-len", "999999"], "has no window of 999999"),
        (
            ["train", "--batch-size", "3", "--num-micro-batches", "2"],
            "batch_size 3 does not divide",
        ),
        (["train", "--resume", "--out", "/no/run"], "no file /no/run/training_state.safetensors"),
        (["train", "--evaluate", "nothing"], "no nothing/config.json; shipped models: mini"),
        (["generate", "--model", "nothing"], "no nothing/config.json; shipped models: mini"),
        (["generate", "--temperature", "-1"], "-1.0 is not in the range"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code != 0
    assert told in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command():
    assert "No such command 'trainn'" in run("trainn").output
