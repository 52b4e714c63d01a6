"""The part of `labkit train` on many ranks: processes of our own, or torchrun's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import torch.distributed as dist

    from labkit.train.parallel_run import Done, Job, Reporter

TORCHRUN_TIMEOUT_S = 1800.0  # of one collective


class Failed(click.ClickException):
    """A run that ended by itself; code 1, where a caller's mistake is 2."""


def go(job: dict[str, Any], command: str) -> None:
    """Train, and end as the command does; under torchrun every rank calls it.

    Raises:
        FileNotFoundError, ValueError: what the caller can put right, on every rank.
    """
    from labkit.launch.place import torchrun_size
    from labkit.train.parallel_run import Job

    made = Job(**job)
    made.check()
    if torchrun_size() is None:
        made.out.mkdir(parents=True, exist_ok=True)
        with _told_plainly(made):
            done = _in_own_processes(made)
        _end(made, done, command)
        return
    with _told_plainly(made):
        rank, done = _under_torchrun(made)
    if rank == 0:
        _end(made, done, command)


def _in_own_processes(job: "Job") -> "Done":
    from labkit.launch import MAX_TIMEOUT_S, run_ranks
    from labkit.launch.watch import listening

    with _bar(job) as bar, listening(bar.tell) as channel:
        size = job.plan.world_size
        return run_ranks(_rank, size, job, channel, timeout=MAX_TIMEOUT_S)[0]


def _under_torchrun(job: "Job") -> tuple[int, "Done"]:
    import torch.distributed as dist

    from labkit.launch import world
    from labkit.launch.watch import asked_to_stop

    with asked_to_stop() as asked, world(timeout=TORCHRUN_TIMEOUT_S) as group:
        rank = dist.get_rank(group)
        job.out.mkdir(parents=True, exist_ok=True)
        with _bar(job, hidden=rank > 0) as bar:
            bar.asked = asked
            return rank, _rank(group, job, bar)


def _rank(group: "dist.ProcessGroup", job: "Job", reporter: "Reporter") -> "Done":
    from labkit.launch import device
    from labkit.train.parallel_run import train_on_ranks

    return train_on_ranks(group, job, reporter, device())


@dataclass
class _Bar:
    """tqdm's bar as the one that is told of steps."""

    bar: Any
    asked: Any = None

    def tell(self, word: Mapping[str, Any]) -> None:
        loss, lr = f"{word['loss']:.3f}", f"{word['lr']:.1e}"
        self.bar.set_postfix(loss=loss, lr=lr, refresh=False)
        self.bar.update(word["step"] - self.bar.n)

    def stop_wanted(self) -> bool:
        return self.asked is not None and self.asked()


@contextmanager
def _bar(job: "Job", hidden: bool = False) -> Iterator[_Bar]:
    from tqdm import tqdm

    from labkit.train.run_files import last_saved

    start = last_saved(job.out)[0] if job.resume else 0
    about = dict(total=job.settings.steps, initial=start, desc=job.name, unit="step")
    with tqdm(**about, disable=hidden) as bar:
        yield _Bar(bar)


def _end(job: "Job", done: "Done", command: str) -> None:
    from labkit.cli.train import print_scores, say_where
    from labkit.train.finish import finish_ranks

    if not done.complete:
        click.echo(f"\nstopped after step {len(done.losses)}; --resume goes on", err=True)
        return
    print_scores(finish_ranks(job, done.losses, command))
    say_where(job.out)


@contextmanager
def _told_plainly(job: "Job") -> Iterator[None]:
    """Say in a line or two what ended the ranks, and where the run can go on."""
    from labkit.launch import RankError
    from labkit.train.run_files import has_run, last_saved

    try:
        yield
    except (RankError, OSError) as error:
        message = str(error).partition("\n\nTraceback")[0]
        if has_run(job.out):
            message += f"\nthe last complete checkpoint is step {last_saved(job.out)[0]} in "
            message += f"{job.out}; --resume goes on from there"
        if "failed first: ValueError" in message:  # raised on every rank, the first one told
            raise ValueError(message) from error
        raise Failed(message) from error
