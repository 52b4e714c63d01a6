"""Lab 06: the checks of schedules, which are data, by playing them in virtual time.

A learner's schedule is a list for each rank, of pairs such as ("F", 3). With p ranks, m
micro-batches, F = 1 and B = 2 units of time, or F = I = W = 1:

| schedule    | units of time                    | micro-batches held on rank r |
| ----------- | -------------------------------- | ---------------------------- |
| gpipe       | 3(m + p − 1)                     | m, all forwards come first   |
| one_f_one_b | 3(m + p − 1)                     | at most min(m, p − r)        |
| zero_bubble | max(3m + p − 1, 2m + 2p − 1)     | at most min(m, p)            |

None can be faster. The last rank cannot begin before F has passed p − 1 others, and in the first
two B has as many to pass on its way back. In the third, work of the last rank alone gives the first
bound; the first I of rank 0 cannot begin before 2p − 1, with m of I and of W still to come, which
gives the second.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner
from labkit.parallel.pipeline import Action, Schedule, simulate_schedule

Pair = tuple[str, int]
Rows = Sequence[Sequence[Pair]]
# (p, m); the first shows most mistakes, the others are its edges: m < p, m = p, m = 1, p = 1.
CASES = ((4, 8), (4, 4), (4, 2), (2, 5), (3, 4), (4, 1), (1, 1), (1, 3), (2, 1), (8, 3), (5, 17))
WHOLE, SPLIT = ("F", "B"), ("F", "I", "W")


def run_schedules(group: dist.ProcessGroup, learner: Any, cases: Sequence[tuple[int, int]]) -> Any:
    """On one rank: the learner's schedule for every case."""
    return [learner(num_stages, num_micro_batches) for num_stages, num_micro_batches in cases]


def check_gpipe(learner: Learner) -> Iterator[str]:
    """All forwards, then all backwards, and no rank waits longer than it must."""
    for rows, told, p, m in _asked(learner, WHOLE):
        for rank, row in enumerate(rows):
            kinds = [kind for kind, _ in row]
            if kinds != sorted(kinds, reverse=True):  # F comes after B in the alphabet
                raise CheckFailed("lab06.gpipe.mixed", rank=rank, row=names(row), **told)
        _judge_time("lab06.gpipe.slow", rows, 3 * (m + p - 1), told)
    yield from ("complete", "order", "time", "edges")


def check_one_f_one_b(learner: Learner) -> Iterator[str]:
    """As fast as GPipe, with at most min(m, p - rank) micro-batches on a rank."""
    for rows, told, p, m in _asked(learner, WHOLE):
        _judge_held("lab06.one_f_one_b.held", rows, [min(m, p - rank) for rank in range(p)], told)
        _judge_time("lab06.one_f_one_b.slow", rows, 3 * (m + p - 1), told)
    yield from ("complete", "memory", "time", "edges")


def check_zero_bubble(learner: Learner) -> Iterator[str]:
    """Backward in two parts fills the bubble, and rank 0 holds no more than in 1F1B."""
    for rows, told, p, m in _asked(learner, SPLIT):
        _judge_held("lab06.zero_bubble.held", rows, [min(m, p)] * p, told)
        fastest = max(3 * m + p - 1, 2 * m + 2 * p - 1)
        _judge_time("lab06.zero_bubble.slow", rows, fastest, told)
    yield from ("complete", "memory", "time", "edges")


def _asked(
    learner: Learner, kinds: Sequence[str]
) -> Iterator[tuple[Rows, dict[str, Any], int, int]]:
    """Every case's schedule, once it is complete and nobody waits for ever."""
    answers = learner.run(run_schedules, 1, CASES)[0]
    for (p, m), rows in zip(CASES, answers, strict=True):
        told = {"stages": p, "micro_batches": m}
        _judge_form(rows, p, told)
        wanted = {(kind, i) for kind in kinds for i in range(m)}
        for rank, row in enumerate(rows):
            _judge_row(row, wanted, {"rank": rank, "row": names(row), **told})
        yield rows, told, p, m


def _judge_form(rows: Any, p: int, told: dict[str, Any]) -> None:
    if not isinstance(rows, (list, tuple)) or not all(isinstance(r, (list, tuple)) for r in rows):
        raise CheckFailed("lab06.schedule.form", got=f"{rows!r:.80}", **told)
    if len(rows) != p:
        raise CheckFailed("lab06.schedule.ranks", got=len(rows), **told)
    for row in rows:
        for pair in row:
            if not isinstance(pair, tuple) or [type(x) for x in pair] != [str, int]:
                raise CheckFailed("lab06.schedule.form", got=f"{pair!r:.80}", **told)


def _judge_row(row: Sequence[Pair], wanted: set[Pair], told: dict[str, Any]) -> None:
    """Each action exactly once, and none before what this rank itself must do first."""
    counted = Counter(row)
    faults = {
        "unknown": sorted(set(row) - wanted),
        "missing": sorted(wanted - set(row), key=lambda pair: (pair[1], pair[0] != "F")),
        "twice": sorted(pair for pair, times in counted.items() if times > 1),
    }
    for key, pairs in faults.items():
        if pairs:
            raise CheckFailed(f"lab06.schedule.{key}", action=name(pairs[0]), **told)
    for first, second in (("F", "B"), ("F", "I"), ("I", "W")):
        for kind, i in row:
            if kind == second and row.index((first, i)) > row.index((kind, i)):
                pair = {"action": name((kind, i)), "before": name((first, i))}
                raise CheckFailed("lab06.schedule.too_early", **pair, **told)


def _judge_held(key: str, rows: Rows, most: Sequence[int], told: dict[str, Any]) -> None:
    for rank, row in enumerate(rows):
        if (got := held(row)) > most[rank]:
            raise CheckFailed(key, rank=rank, expected=most[rank], got=got, row=names(row), **told)


def _judge_time(key: str, rows: Rows, expected: int, told: dict[str, Any]) -> None:
    if (got := makespan(rows, told)) > expected:
        raise CheckFailed(key, expected=expected, got=got, rows=drawn(rows), **told)


def makespan(rows: Rows, told: dict[str, Any]) -> int:
    """Units of time from the first action of any rank to the end of the last.

    Raises:
        CheckFailed: naming who waits for what, if ranks wait for each other for ever.
    """
    try:
        return round(simulate_schedule(schedule_of(rows)).makespan_s)
    except ValueError as error:
        waits = str(error).removeprefix("yours: ").removeprefix("deadlock: ")
        raise CheckFailed("lab06.schedule.stuck", waits=waits, **told) from None


def schedule_of(rows: Any) -> Schedule:
    """The library's schedule of the same actions: one stage a rank."""
    return Schedule(
        name="yours",
        num_stages_per_rank=1,
        placement="loop",
        num_micro_batches=len({i for _, i in rows[0]}),
        ranks=tuple(tuple(Action(*pair) for pair in row) for row in rows),
    )


def held(row: Sequence[Pair]) -> int:
    """The most micro-batches at once: from F until the gradient of the weights is there."""
    now = most = 0
    for kind, _ in row:
        now += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most


def name(pair: Pair) -> str:
    """Such as "F3"."""
    return f"{pair[0]}{pair[1]}"


def names(row: Sequence[Pair]) -> str:
    """A rank's actions in one line, the end of a long one left out."""
    told = " ".join(name(pair) for pair in row[:20])
    return told + (" …" if len(row) > 20 else "")


def drawn(rows: Rows) -> str:
    """A line a rank."""
    return "\n".join(f"rank {rank}: {names(row)}" for rank, row in enumerate(rows))
