"""Short runs of the command on a small corpus, and what may be planted in their ranks.

A planted fault replaces the function that each rank calls; it is carried to the ranks by value.
"""

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.cli import main, train_ranks
from labkit.train.parallel_run import train_on_ranks
from labkit.train.resume import STATE, saved_losses
from labkit.train.run_files import RUN

STEPS = 6
SMALL = ["--model", "nano", "--batch-size", "4", "--seq-len", "16", "--precision", "fp32"]
SMALL += ["--steps", str(STEPS), "--save-every", "2"]


def write_corpus(folder: Path) -> Path:
    folder.mkdir()
    for name in ("one", "two", "three"):
        (folder / f"{name}.txt").write_text(f"{name} fish, red fish, blue fish. " * 20)
    return folder


def train(out, corpus, *arguments, steps=None):
    """`labkit train` in this process; its ranks are processes."""
    given = ["--corpus", corpus, "--out", out, *arguments]
    given += [] if steps is None else ["--steps", steps]
    return CliRunner().invoke(main, ["train", *SMALL, *map(str, given)])


def losses(out):
    """Of all steps, as the run's files have them."""
    from labkit.model.files import read_json

    return saved_losses(out) if (out / STATE).exists() else read_json(out / RUN)["losses"]


def steps_saved(out):
    """Of the complete checkpoints."""
    return sorted(int(path.parent.name[5:]) for path in out.glob("step-*/manifest.json"))


class At:
    """A reporter that lets something happen on one rank before a step, counted from 1."""

    def __init__(self, reporter, step, act):
        self.reporter, self.left, self.act = reporter, step, act

    def tell(self, word):
        self.reporter.tell(word)

    def stop_wanted(self):
        self.left -= 1
        if self.left == 0:
            self.act(self.reporter)
        return self.reporter.stop_wanted()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def press_ctrl_c(reporter):
    """Interrupt the command, and wait until its wish is here."""
    import multiprocessing

    os.kill(multiprocessing.parent_process().pid, signal.SIGINT)
    while not reporter.stop_wanted():
        pass


def planted(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, step: int, act):
    """Let `act` happen on a rank of the next run; every rank leaves its process number."""

    def on_rank(group, job, reporter):
        import torch

        (folder / f"pid{group.rank()}").write_text(str(os.getpid()))
        if group.rank() == rank:
            reporter = At(reporter, step, act)
        return train_on_ranks(group, job, reporter, torch.device("cpu"))

    monkeypatch.setattr(train_ranks, "_rank", on_rank)


def alive(folder: Path) -> list[int]:
    """Processes of the planted run that still run."""
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert pids, "the planted run never started"
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
