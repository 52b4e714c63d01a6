"""What ranks must agree on: the rules by which mismatch.py compares the calls of two ranks.

Ranks of a group issue the same operation in the same order, with the same dtype, root and
reduction. Their shapes are equal too, with two exceptions: a scatter's root holds a piece for each
rank, and in an all-to-all what one rank sends to another must be what that one expects. A send and
its recv have the same dtype and shape, or equally many elements where one of them is flat.
"""

import json
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Self

from .call import Call


@dataclass(frozen=True, kw_only=True)
class Post:
    """What one rank tells the others about a call, before it issues it."""

    rank: int
    text: str
    operation: str
    axis: str
    ranks: list[int]
    shapes: list[list[int]]
    dtype: str
    peer: int | None
    reduce_op: str | None
    sends: list[int]
    expects: list[int]

    @classmethod
    def of(cls, call: Call) -> Self:
        """The part of a call that others compare with theirs."""
        return cls(
            rank=call.rank,
            text=f"rank {call.rank}: {call}",
            operation=call.operation,
            axis=call.axis,
            ranks=list(call.ranks),
            shapes=[list(shape) for shape in call.shapes],
            dtype=str(call.dtype),
            peer=call.peer,
            reduce_op=call.reduce_op,
            sends=list(call.sends),
            expects=list(call.expects),
        )

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read what `dump` wrote; never unpickles what came from another process."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def disagreement(a: Post, b: Post) -> str | None:
    """The rule that two ranks' calls break, with both calls; None if they fit together."""
    first, second = sorted((a, b), key=lambda post: post.rank)
    if {first.operation, second.operation} == {"send", "recv"}:
        rule = _message_rule(first, second)
    else:
        rule = _collective_rule(first, second)
    return rule and f"{first.text}; {second.text}: {rule}"


def _collective_rule(a: Post, b: Post) -> str | None:
    group = f"ranks of group {a.axis!r} must"
    if a.ranks != b.ranks:
        return f"{group} name the same members, not {a.ranks} and {b.ranks}"
    if a.operation != b.operation:
        return f"{group} issue the same operation in the same order"
    if a.peer != b.peer:
        return f"{group} name the same root"
    if a.dtype != b.dtype:
        return f"{group} pass the same dtype"
    if a.reduce_op != b.reduce_op:
        return f"{group} reduce with the same operator, not {a.reduce_op} and {b.reduce_op}"
    if a.operation == "all_to_all":
        return _exchange_rule(a, b) or _exchange_rule(b, a)
    if a.operation == "scatter" and a.peer in (a.rank, b.rank):
        root, other = (a, b) if a.rank == a.peer else (b, a)
        piece = root.shapes[root.ranks.index(other.rank)]
        same = [piece] == other.shapes
    else:
        same = a.shapes == b.shapes
    return None if same else f"{group} pass the same shape"


def _exchange_rule(a: Post, b: Post) -> str | None:
    sent = a.sends[a.ranks.index(b.rank)]
    expected = b.expects[b.ranks.index(a.rank)]
    if sent == expected:
        return None
    return f"rank {a.rank} sends {sent} bytes to rank {b.rank}, which expects {expected}"


def _message_rule(a: Post, b: Post) -> str | None:
    if a.dtype != b.dtype:
        return "a send and its recv must have the same dtype"
    (left,), (right,) = a.shapes, b.shapes
    flat = 1 in (len(left), len(right)) and prod(left) == prod(right)
    return None if left == right or flat else "a send and its recv must have the same shape"
