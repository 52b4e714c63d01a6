"""Lab 03: the checks of efficiency and of the knee, against replays of real runs in virtual time.

BucketedDataParallel ran on four real ranks, on stacks of equal layers, one to a bucket. There the
formula is exact, and an answer may be off by 1 %. One stack has layers that differ; there the
formula is a model, and 10 % are allowed. Either is a bound on the time of the step.

A log of one rank does not say how many others there are. Up to a few ranks, copies of it are
replayed on the fabric. The knee needs thousands: ranks that do the same share one clock, so one of
them is replayed, with transfers that take what N ranks take. A test shows that both are equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from labkit.cost.collectives import ring_all_reduce_time_s
from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab02_ranks import run_prices
from labkit.grade.lab03_knee_ranks import RUNS, record_runs
from labkit.launch import run_ranks
from labkit.measure.events import Compute, Event, Launch, Mark
from labkit.measure.fabric import Fabric, replay
from labkit.measure.virtual import VirtualRun

RANKS = 4
STEP_S = 30e-6  # of each run on one rank
CLOSE, CLOSE_IF_UNEVEN = 0.01, 0.1
BOUND = 0.8
POWERS = [2**k for k in range(13)]
# (run, ranks, α, β), by what they show. "short": a bucket's message takes less time than the
# arithmetic behind a bucket, "long": more.
ASKED = (
    ("short", "4 layers", 4, 3e-7, 0.0),
    ("short", "4 layers", 4, 0.0, 6e-10),
    ("long", "4 layers", 4, 2e-6, 0.0),
    ("long", "4 layers", 4, 0.0, 4e-9),
    ("long", "8 layers", 16, 1e-7, 1e-9),
    ("short", "8 layers", 2, 1e-7, 4e-10),
    ("short", "4 layers, two forwards", 4, 2e-7, 3e-10),
    ("long", "4 layers, two forwards", 3, 8e-7, 2e-9),
    ("one_bucket", "1 layer", 4, 3e-7, 2e-9),
    ("alone", "4 layers", 1, 1e-6, 1e-9),
)
ASKED_IF_UNEVEN = (("layers that differ", 4, 3e-7, 1e-9), ("layers that differ", 8, 3e-7, 1e-9))
KNEES = (
    ("4 layers", 5e-7, 6e-10),
    ("8 layers", 1e-8, 1e-10),
    ("4 layers", 0.0, 3e-9),
    ("4 layers", 0.0, 1e-10),
    ("8 layers", 1e-9, 1e-9),
    ("1 layer", 1.2e-9, 1e-10),
    ("4 layers, two forwards", 5e-8, 1e-10),
    ("1 layer", 6e-10, 1e-11),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run: its logs by rank, what a rank computes in it and what it sends."""

    logs: list[list[Event]]
    forward_flops: float
    backward_flops: float
    payloads: list[int]

    @property
    def flops(self) -> float:
        """FLOP per second at which one rank alone takes STEP_S."""
        return (self.forward_flops + self.backward_flops) / STEP_S

    def question(self, *link: float) -> tuple:
        """The arguments that the learner's functions share."""
        seconds = (self.forward_flops / self.flops, self.backward_flops / self.flops)
        return (*seconds, sum(self.payloads), len(self.payloads), *link)

    def step_s(self, ranks: int, alpha: float, beta: float) -> float:
        """Virtual seconds of a step of this many ranks, all of them replayed."""
        fabric = Fabric(alpha=alpha, beta=beta, flops=self.flops)
        return replay(self.logs if ranks == RANKS else copies(self.logs[0], ranks), fabric).step_s

    def quick_step_s(self, ranks: int, alpha: float, beta: float) -> float:
        """The same from one rank's log."""

        def transfer_time_s(launch: Launch, members: tuple[int, ...], payload: float) -> float:
            return ring_all_reduce_time_s(payload, ranks, alpha, beta)

        logs = copies(self.logs[0], 1)
        return (
            VirtualRun(logs, lambda rank, flops: flops / self.flops, transfer_time_s).run().step_s
        )

    def knee(self, alpha: float, beta: float) -> int | None:
        """The first power of two at which a step takes more than STEP_S / BOUND."""
        slow = (n for n in POWERS if STEP_S / self.quick_step_s(n, alpha, beta) < BOUND)
        return next(slow, None)


def copies(log: Sequence[Event], num_ranks: int) -> list[list[Event]]:
    """Logs of a world whose ranks all do what this one did."""
    ranks = tuple(range(num_ranks))
    each = [replace(event, ranks=ranks) if isinstance(event, Launch) else event for event in log]
    return [each] * num_ranks


@cache
def recorded() -> dict[str, Run]:
    """The same whoever is asked, so a process needs them once."""
    by_rank = run_ranks(record_runs, RANKS, device="cpu", debug=False)
    return {name: _read([logs[name] for logs in by_rank]) for name in RUNS}


def _read(logs: list[list[Event]]) -> Run:
    log = logs[0]
    middle = next(i for i, event in enumerate(log) if isinstance(event, Mark))
    halves = [
        sum(event.flops for event in half if isinstance(event, Compute))
        for half in (log[:middle], log[middle:])
    ]
    return Run(
        logs=logs,
        forward_flops=halves[0],
        backward_flops=halves[1],
        payloads=[event.bytes for event in log if isinstance(event, Launch)],
    )


def check_efficiency(learner: Learner) -> Iterator[str]:
    """Time of one rank alone over the time of a step of N ranks."""
    runs = recorded()
    uneven = [("uneven", *each) for each in ASKED_IF_UNEVEN]
    asked = [*ASKED, *uneven]
    questions = [(ranks, *runs[name].question(*link)) for _, name, ranks, *link in asked]
    answers = learner.run(run_prices, 1, questions)[0]
    for (part, name, ranks, *link), question, got in zip(asked, questions, answers, strict=True):
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise CheckFailed("run.type", expected="a number", got=type(got).__name__)
        step_s = runs[name].step_s(ranks, *link)
        most = CLOSE_IF_UNEVEN if part == "uneven" else CLOSE
        if got > 0 and abs(STEP_S / got - step_s) <= most * step_s:
            continue
        cause = (*_causes(question, STEP_S / step_s, float(got)), part)[0]
        told = {"expected": f"{STEP_S / step_s:.4f}", "got": f"{got:.4f}", "step": _us(step_s)}
        raise CheckFailed(f"lab03.efficiency.{cause}", **told, **_told(question))
    yield from ("short", "long", "one_bucket", "alone", "uneven")


def _causes(question: tuple, right: float, got: float) -> Iterator[str]:
    """Ends of the keys of likely mistakes that give this number."""
    ranks, forward_s, backward_s, size, buckets, alpha, beta = question
    alone_s = forward_s + backward_s
    all_s = buckets * ring_all_reduce_time_s(size / buckets, ranks, alpha, beta)
    for cause, wrong in (
        ("after", alone_s / (alone_s + all_s)),
        ("too_early", alone_s / (forward_s + max(backward_s, all_s))),
        ("upside_down", 1 / right),
        ("percent", 100 * right),
        ("last_only", alone_s / (alone_s + all_s / buckets)),
    ):
        if abs(got - wrong) <= 1e-6 * wrong and abs(got - right) > CLOSE * right:
            yield cause


def check_knee_ranks(learner: Learner) -> Iterator[str]:
    """The first power of two with an efficiency under 80 %."""
    runs = recorded()
    questions = [runs[name].question(*link) for name, *link in KNEES]
    answers = learner.run(run_prices, 1, questions)[0]
    for (name, *link), question, got in zip(KNEES, questions, answers, strict=True):
        expected = runs[name].knee(*link)
        if got is not None and (isinstance(got, bool) or not isinstance(got, int)):
            told = "a whole number or None"
            raise CheckFailed("run.type", expected=told, got=type(got).__name__)
        if got == expected:
            continue
        cause = "values"
        if expected is None or got is None:
            cause = "never"
        elif 2 * got == expected:
            cause = "last"
        values = {"expected": expected, "got": got, **_told((None, *question))}
        raise CheckFailed(f"lab03.knee.{cause}", **values)
    yield from ("knees", "none")


def _told(question: tuple) -> dict[str, Any]:
    ranks, forward_s, backward_s, size, buckets, alpha, beta = question
    return {
        "ranks": ranks,
        "run": f"forward {_us(forward_s)}, backward {_us(backward_s)}, "
        f"{size:,} bytes in {buckets} {'buckets' if buckets > 1 else 'bucket'}, "
        f"α = {alpha:g} s, β = {beta:g} s a byte",
    }


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"
