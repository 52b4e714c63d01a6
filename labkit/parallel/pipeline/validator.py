"""Is a schedule legal? Found out from the data alone, before a process is started.

Four questions, in this order:

1. Is every micro-batch taken through every stage exactly once, as F and B or as F, I and W?
2. Does each rank run what it makes itself before what needs it?
3. Do all ranks come to their end, or do some wait for one another for ever?
4. Does no rank hold more micro-batches than it may?

The third is decided under rendezvous: a send is complete only when its receive is posted. Between
two actions a rank sends the result of the one and receives the input of the next.

| exchange       | a rank goes on when                                   | deadlocks               |
| -------------- | ----------------------------------------------------- | ----------------------- |
| "in_turn"      | the send is complete, and after it the receive        | 1F1B and all below      |
| "batched"      | both are complete; they are posted together           | interleaved, V-shaped   |
| "asynchronous" | the receive is complete; sends wait in the background | none of this package    |

What passes in one row passes in all rows below it. The executor works as the last row says. A
receive takes the message that it names: which activation or gradient, not which came first.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from labkit.parallel.pipeline.actions import KINDS, Action, Result, Schedule

Exchange = Literal["in_turn", "batched", "asynchronous"]
LONGEST_STORY = 4  # ranks of a circle that a message names


@dataclass(frozen=True, slots=True)
class Transfer:
    """One side of a message: what a rank sends or receives before or after an action."""

    sends: bool
    result: Result
    peer: int
    action: Action

    def __str__(self) -> str:
        what = "activation" if self.result[0] == "F" else "gradient"
        verb, preposition = ("send", "to") if self.sends else ("receive", "from")
        when = "after" if self.sends else "before"
        return (
            f"{when} {self.action} to {verb} the {what} of stage {self.result[1]}, micro-batch "
            f"{self.result[2]}, {preposition} rank {self.peer}"
        )


def validate(
    schedule: Schedule, *, stash_limit: int | None = None, exchange: Exchange = "asynchronous"
) -> None:
    """Raise unless a schedule is legal.

    Args:
        schedule: what each rank does.
        stash_limit: the most micro-batches a rank may hold at once, counted per chunk.
        exchange: how ranks send and receive; see above.

    Raises:
        ValueError: says which rank and which action is at fault, and what it waits for.
    """
    found = fault(schedule, exchange)
    if found:
        raise ValueError(f"{schedule.name}: {found}")
    for rank in range(schedule.num_ranks):
        peak = schedule.peak_stash(rank)
        if stash_limit is not None and peak > stash_limit:
            raise ValueError(
                f"{schedule.name}: rank {rank} holds {peak} micro-batches at once, allowed are "
                f"{stash_limit}: run backwards earlier"
            )


def fault(schedule: Schedule, exchange: Exchange) -> str | None:
    """The first of the first three questions that a schedule fails, in words."""
    return missing_or_doubled(schedule) or out_of_order(schedule) or deadlock(schedule, exchange)


def missing_or_doubled(schedule: Schedule) -> str | None:
    """The first action that is missing, doubled or out of range, in words."""
    sizes = (schedule.num_ranks, schedule.num_stages_per_rank, schedule.num_micro_batches)
    if min(sizes) < 1:
        return "{} ranks, {} chunks, {} micro-batches: at least 1 of each".format(*sizes)
    for rank, actions in enumerate(schedule.ranks):
        counts = Counter(actions)
        for action in actions:
            if not (
                action.kind in KINDS
                and 0 <= action.micro_batch < schedule.num_micro_batches
                and 0 <= action.chunk < schedule.num_stages_per_rank
            ):
                return (
                    f"rank {rank} runs {action}, but there are kinds F, B, I, W, "
                    f"{schedule.num_micro_batches} micro-batches, {schedule.num_stages_per_rank} "
                    f"chunks"
                )
        for chunk in range(schedule.num_stages_per_rank):
            for i in range(schedule.num_micro_batches):
                times = {kind: counts[Action(kind, i, chunk)] for kind in KINDS}
                if tuple(times.values()) not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                    found = ", ".join(f"{kind} {n} times" for kind, n in times.items() if n)
                    return (
                        f"rank {rank} must take micro-batch {i} through chunk {chunk} as F, B or "
                        f"as F, I, W, each once; found {found or 'nothing'}"
                    )
    return None


def out_of_order(schedule: Schedule) -> str | None:
    """The first action that comes before one of its own rank that it needs, in words."""
    for rank, actions in enumerate(schedule.ranks):
        made: set[Result] = set()
        for action in actions:
            for kind, stage, i in schedule.inputs(rank, action):
                if schedule.rank_of(stage) == rank and (kind, stage, i) not in made:
                    what = "forward" if kind == "F" else "gradient of the input"
                    return (
                        f"rank {rank} runs {action} before the {what} of stage {stage}, "
                        f"micro-batch {i}, which it needs and runs itself"
                    )
            result = schedule.result(rank, action)
            if result:
                made.add(result)
    return None


def deadlock(schedule: Schedule, exchange: Exchange) -> str | None:
    """Which ranks wait for one another for ever, and where; None if all come to their end."""
    steps = [exchanges(schedule, rank, exchange) for rank in range(schedule.num_ranks)]
    at = [-1] * schedule.num_ranks
    posted: set[tuple[bool, Result]] = set()
    blocking: list[list[Transfer]] = [[] for _ in steps]
    runnable = list(range(schedule.num_ranks))
    while runnable:
        rank = runnable.pop()
        while at[rank] < len(steps[rank]):
            blocking[rank] = [t for t in blocking[rank] if (not t.sends, t.result) not in posted]
            if blocking[rank]:
                break
            at[rank] += 1
            step = steps[rank][at[rank]] if at[rank] < len(steps[rank]) else []
            posted.update((transfer.sends, transfer.result) for transfer in step)
            runnable += [transfer.peer for transfer in step]
            blocking[rank] = [t for t in step if exchange != "asynchronous" or not t.sends]
    held_up = {rank: transfers[0] for rank, transfers in enumerate(blocking) if transfers}
    return who_waits(held_up) if held_up else None


def exchanges(schedule: Schedule, rank: int, exchange: Exchange) -> list[list[Transfer]]:
    """What a rank posts together, in order: before, between and after its actions."""
    steps: list[list[Transfer]] = []
    sends: list[Transfer] = []
    for action in schedule.ranks[rank]:
        receives = [
            Transfer(False, needed, schedule.rank_of(needed[1]), action)
            for needed in schedule.inputs(rank, action)
            if schedule.rank_of(needed[1]) != rank
        ]
        steps += [sends, receives] if exchange == "in_turn" else [sends + receives]
        after, result = schedule.stage_after(rank, action), schedule.result(rank, action)
        sends = []
        if result and after is not None and schedule.rank_of(after) != rank:
            sends = [Transfer(True, result, schedule.rank_of(after), action)]
    return [step for step in [*steps, sends] if step]


def who_waits(held_up: dict[int, Transfer]) -> str:
    """The circle of waiting ranks. There is one: whoever has ended, nobody waits for."""
    chain = [min(held_up)]
    while held_up[chain[-1]].peer not in chain:
        chain.append(held_up[chain[-1]].peer)
    circle = chain[chain.index(held_up[chain[-1]].peer) :]
    told = [f"rank {rank} waits {held_up[rank]}" for rank in circle[:LONGEST_STORY]]
    left_out = len(circle) - len(told)
    return "deadlock: " + "; ".join(told) + (f"; and so do {left_out} ranks more" * bool(left_out))
