"""Where every copy of a token lies before and after dispatch, as data for a picture.

A rank sorts its copies by expert, and a rank that receives sorts what comes by expert, then by
rank: the order in which `labkit.parallel.expert` runs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Choices = Sequence[Sequence[Sequence[int]]]  # [rank][token][slot]: an expert


@dataclass(frozen=True, kw_only=True)
class Move:
    """One copy: its token, and where it lies before and after dispatch."""

    source: int
    token: int
    place: int  # among the copies of its rank
    expert: int
    target: int
    there: int  # among the copies that the target receives


def moves(choices: Choices, num_experts: int) -> list[Move]:
    """All copies as expert parallelism sends them: sorted by expert, those of a rank by token."""
    share = num_experts // len(choices)
    sent = []
    for source, tokens in enumerate(choices):
        copies = [(expert, token) for token, chosen in enumerate(tokens) for expert in chosen]
        copies.sort(key=lambda copy: copy[0])
        sent += [(expert, source, token, place) for place, (expert, token) in enumerate(copies)]
    received = [0] * len(choices)
    made = []
    for expert, source, token, place in sorted(sent, key=lambda copy: copy[:2]):
        target = expert // share
        there, received[target] = received[target], received[target] + 1
        places = {"place": place, "there": there}
        made.append(Move(source=source, token=token, expert=expert, target=target, **places))
    return made


def num_away(made: Sequence[Move]) -> int:
    """Copies that go to another rank."""
    return sum(move.source != move.target for move in made)


def loads_of(made: Sequence[Move], num_ranks: int) -> list[int]:
    """Copies that each rank receives."""
    return [sum(move.target == rank for move in made) for rank in range(num_ranks)]
