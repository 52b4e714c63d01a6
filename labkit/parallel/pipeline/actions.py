"""A pipeline schedule as data: what every rank does, in order, before anything runs.

A model is cut into stages 0 … S−1, a batch into micro-batches 0 … m−1. A rank holds one stage or
several; each of its stages is one of its chunks. Four kinds of action do for every schedule:

| kind | does                                        | needs                            |
| ---- | ------------------------------------------- | -------------------------------- |
| F    | forward                                     | F of the stage before            |
| B    | whole backward: gradients of input, weights | own F; B or I of the stage after |
| I    | gradient of the input only                  | own F; B or I of the stage after |
| W    | gradient of the weights only                | own I                            |

A micro-batch passes a stage as F then B, or as F, I, W. What crosses a boundary between two ranks
is an activation after F and its gradient after B or I; W sends nothing.

Where the stages lie, p ranks and v chunks:

| placement | stage of (rank, chunk)                           | p = 2, v = 2: rank 0, rank 1 |
| --------- | ------------------------------------------------ | ---------------------------- |
| loop      | chunk·p + rank                                   | 0 and 2, 1 and 3             |
| v         | as in the loop; in odd chunks from the last rank | 0 and 3, 1 and 2             |

In the loop the last rank sends forward to the first; in the V every hop is between neighbours, and
at the turn, from one chunk to the next of one rank, nothing is sent at all.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["F", "B", "I", "W"]
Placement = Literal["loop", "v"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
Result = tuple[
    Literal["F", "B"], int, int
]  # activation or gradient, the stage it is of, micro-batch


@dataclass(frozen=True, slots=True)
class Action:
    """One step of one rank: `F3`, or `F3.1` on chunk 1."""

    kind: Kind
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The actions of every rank, and where its stages lie."""

    name: str
    num_stages_per_rank: int
    placement: Placement
    num_micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_stages_per_rank

    def stage(self, rank: int, chunk: int) -> int:
        """The stage that is this rank's chunk."""
        turned = self.placement == "v" and chunk % 2 == 1
        return chunk * self.num_ranks + (self.num_ranks - 1 - rank if turned else rank)

    def chunk_of(self, stage: int) -> int:
        return stage // self.num_ranks

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        position, chunk = stage % self.num_ranks, self.chunk_of(stage)
        turned = self.placement == "v" and chunk % 2 == 1
        return self.num_ranks - 1 - position if turned else position

    def stage_before(self, rank: int, action: Action) -> int | None:
        """The stage whose result an action takes; None where it takes the batch, the loss or none.

        It may lie on the same rank: a group of one, or the turn of a V.
        """
        stage = self.stage(rank, action.chunk)
        if action.kind == "W":
            return None
        before = stage - 1 if action.kind == "F" else stage + 1
        return before if 0 <= before < self.num_stages else None

    def stage_after(self, rank: int, action: Action) -> int | None:
        """The stage that takes an action's result; None where nothing is passed on."""
        stage = self.stage(rank, action.chunk)
        if action.kind == "W":
            return None
        after = stage + 1 if action.kind == "F" else stage - 1
        return after if 0 <= after < self.num_stages else None

    def result(self, rank: int, action: Action) -> Result | None:
        """What an action produces for others: its stage's activation, or its input's gradient."""
        if action.kind == "W":
            return None
        kind: Literal["F", "B"] = "F" if action.kind == "F" else "B"
        return kind, self.stage(rank, action.chunk), action.micro_batch

    def inputs(self, rank: int, action: Action) -> list[Result]:
        """The results that an action needs: of its own stage first, then of the stage before."""
        stage, i = self.stage(rank, action.chunk), action.micro_batch
        if action.kind == "W":
            return [("B", stage, i)]
        if action.kind == "F":
            return [("F", stage - 1, i)] if stage > 0 else []
        own: list[Result] = [("F", stage, i)]
        return own if stage + 1 == self.num_stages else [*own, ("B", stage + 1, i)]

    def peak_stash(self, rank: int) -> int:
        """The most micro-batches that a rank holds at once, counted per chunk, from F to B or W."""
        held = peak = 0
        for action in self.ranks[rank]:
            held += {"F": 1, "I": 0}.get(action.kind, -1)
            peak = max(peak, held)
        return peak

    def rows(self) -> list[str]:
        """One line a rank, to be printed: `rank 0: F0 F1 B0 B1`."""
        return [f"rank {r}: " + " ".join(map(str, acts)) for r, acts in enumerate(self.ranks)]
