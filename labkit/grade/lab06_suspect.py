"""Lab 06: the check of the bug hunt, a training step that is 1F1B only where m = p.

The fault is in how many forwards come first: m − 1 − r where p − 1 − r is right. Gradients,
messages and, where m > p, the time of the step are those of a right program. What the stages saw is
judged: on rank r at most min(m, p − r) micro-batches, and 3(m + p − 1) units of virtual time.
"""

from collections.abc import Iterator

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab06_schedules import makespan, names
from labkit.grade.lab06_stage import judge_messages, judge_numbers, ran
from labkit.grade.lab06_stage_ranks import Case

FOUR = (0, 1, 2, 3)
WORLDS = (
    (
        4,
        (
            Case(told="as many as ranks", members=FOUR, num_micro_batches=4),
            Case(told="more than ranks", members=FOUR, num_micro_batches=9),
            Case(told="fewer than ranks", members=FOUR, num_micro_batches=2),
            Case(told="a group", members=(1, 3), num_micro_batches=3),
        ),
    ),
    (1, (Case(told="alone", members=(0,), num_micro_batches=3),)),
)


def check_suspect(learner: Learner) -> Iterator[str]:
    """1F1B with any number of micro-batches."""
    for world_size, cases in WORLDS:
        for case, seen in ran(learner, world_size, cases, "lab06.suspect"):
            judge_numbers("lab06.suspect", case, seen)
            p, m = len(case.members), case.num_micro_batches
            rows = [[(kind, i) for kind, i, *_ in of_rank["happened"]] for of_rank in seen]
            wanted = sorted((kind, i) for kind in ("F", "B") for i in range(m))
            for place, (row, of_rank) in enumerate(zip(rows, seen, strict=True)):
                told = {"rank": case.members[place], "case": case, "row": names(row)}
                if sorted(row) != wanted:
                    raise CheckFailed("lab06.suspect.actions", **told)
                most = min(m, p - place)
                got = max(count for kind, _, _, count in of_rank["happened"] if kind == "F")
                if got > most:
                    raise CheckFailed("lab06.suspect.held", expected=most, got=got, **told)
            expected = 3 * (m + p - 1)
            if (got := makespan(rows, {"stages": p, "micro_batches": m})) > expected:
                shown = "\n".join(
                    f"rank {rank}: {names(row)}"
                    for rank, row in zip(case.members, rows, strict=True)
                )
                told = {"case": case, "rows": shown}
                raise CheckFailed("lab06.suspect.slow", expected=expected, got=got, **told)
            judge_messages("lab06.suspect", case, seen)
    yield from ("gradients", "memory", "time", "messages")
