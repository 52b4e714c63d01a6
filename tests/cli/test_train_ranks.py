"""labkit train on many ranks: one run under any layout, stopped and resumed; torchrun's ranks too.

Oracle: the same command in one process. In fp32 the losses agree to 1e-5, in bf16 to 1e-4.
"""

import os
import signal
import subprocess
import sys

import pytest

from labkit.model.checkpoint import load_checkpoint
from labkit.model.files import read_json
from labkit.train import one_process
from labkit.train.run_files import RUN
from tests.train.runs import (
    SMALL,
    STEPS,
    alive,
    losses,
    planted,
    press_ctrl_c,
    steps_saved,
    train,
    write_corpus,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("ranks") / "texts")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, corpus):
    """Losses of one process, by precision."""
    found = {}
    for precision in ("fp32", "bf16"):
        out = tmp_path_factory.mktemp("ranks") / precision
        done = train(out, corpus, "--precision", precision)
        assert done.exit_code == 0, done.output
        found[precision] = losses(out)
    return found


@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        ("--dp 2 --tp 2 --sequence-parallel", "fp32"),
        ("--pp 2 --dp 2 --across pp --schedule gpipe", "fp32"),
        ("--dp 2 --zero 3 --recompute full", "bf16"),
    ],
)
def test_a_layout_makes_the_run_of_one_process(layout, precision, tmp_path, corpus, alone):
    out = tmp_path / "run"
    done = train(out, corpus, *layout.split(), "--precision", precision)
    assert done.exit_code == 0, done.output
    close = {"fp32": 1e-5, "bf16": 1e-4}[precision]
    assert losses(out) == pytest.approx(alone[precision], rel=close)
    assert (losses(out) == pytest.approx(alone["fp32"], rel=1e-6)) == (precision == "fp32")
    assert steps_saved(out) == [STEPS - 2, STEPS]
    assert "held-out bits a byte, this model: " in done.output
    card = (out / "README.md").read_text()
    assert "| Layout of the last steps | " in card
    assert sum(p.numel() for p in load_checkpoint(out).parameters()) == 218_048


def test_from_one_process_to_ranks_and_back(tmp_path, corpus, alone, monkeypatch):
    """Each is stopped by Ctrl-C after two steps more; all are one run."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(one_process, "steps_of", interrupted(one_process.steps_of))
        stopped(train(out, corpus), after=2)
    with monkeypatch.context() as patch:
        planted(patch, tmp_path, rank=1, step=3, act=press_ctrl_c)
        stopped(train(out, corpus, "--tp", 2, "--resume"), after=4)
    assert alive(tmp_path) == []
    assert steps_saved(out) == [4]
    done = train(out, corpus, "--resume")
    assert done.exit_code == 0, done.output
    assert "4/6 [" in done.output
    assert losses(out) == pytest.approx(alone["fp32"], rel=1e-5)


def test_a_mixture_goes_on_over_experts_and_context(tmp_path, corpus, monkeypatch):
    """Its routers' bias, which is no parameter, goes along."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    mixture = ("--model", "nano-moe", "--lr", "0.004")
    assert train(whole, corpus, *mixture).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(one_process, "steps_of", interrupted(one_process.steps_of))
        stopped(train(out, corpus, *mixture), after=2)
    done = train(out, corpus, *mixture, "--cp", 2, "--ep", 2, "--resume")
    assert done.exit_code == 0, done.output
    assert "2/6 [" in done.output
    assert read_json(out / RUN)["losses"] == pytest.approx(losses(whole), rel=1e-5)
    ours, theirs = (load_checkpoint(each).layers[0].mlp.bias for each in (out, whole))
    assert ours.abs().sum() > 0
    assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-2)


def stopped(done, after):
    assert done.exit_code == 0, done.output
    assert f"stopped after step {after}; --resume goes on" in done.output


def interrupted(steps_of):
    def steps(*run):
        for number, result in enumerate(steps_of(*run)):
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)
            yield result

    return steps


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--dp 2 --precision fp16", "precision 'fp16' on 2 ranks: the loss scale"),
        ("--pp 2 --schedule zb-h1 --precision bf16", "precision 'bf16' with zb-h1"),
        ("--dp 3", "a batch of 4 over dp=3 and 1 micro-batches: use a multiple of 3"),
        ("--tp 3", "4 heads over tp=3"),
        ("--dp 0", "dp is 0, the least is 1"),
        ("--dp 2 --across pp", "pp=1: one rank cannot lie on two hosts"),
        ("--dp 2 --across rows", "no axis 'rows'"),
        ("--dp 2 --save-every 0", "save_every is 0"),
        ("--dp 2 --resume", "training_state.safetensors and no step-*/manifest.json"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, told, tmp_path, corpus):
    out = tmp_path / "run"
    done = train(out, corpus, *arguments.split())
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert "Traceback" not in done.output
    assert not out.exists()


def test_a_plan_of_another_size_than_torchruns_world(tmp_path, corpus, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "8")
    for arguments in (("--dp", 2), ()):
        done = train(tmp_path / "run", corpus, *arguments)
        assert done.exit_code == 2
        size = 2 if arguments else 1
        assert f"the plan has {size} ranks, torchrun started 8" in done.output


def test_under_torchrun_ctrl_c_saves_and_another_layout_goes_on(tmp_path, corpus, monkeypatch):
    """torchrun passes the signal on to its ranks, each of which may hear it in another step."""
    out = tmp_path / "run"
    options = [*SMALL, "--corpus", str(corpus), "--out", str(out), "--dp", "2", "--steps", "2000"]
    options += ["--save-every", "2000"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "labkit", "train", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "loss=" not in (told := process.stderr.read(40)):
            assert told, "torchrun ended before a step"
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        process.wait(timeout=60)
    (step,) = steps_saved(out)
    assert 0 < step < 2000
    assert len(losses(out)) == step
    planted(monkeypatch, tmp_path, rank=0, step=3, act=press_ctrl_c)
    stopped(train(out, corpus, "--tp", 2, "--resume", steps=2000), after=step + 2)
