"""Bytes of the fullest pipeline rank, for many layouts of one model: pieces computed once each.

`layout_memory` answers for one rank of one layout. A search asks for hundreds of thousands, which
share nearly everything, so each piece is kept under the sizes that it depends on:

    states, working memory  pp, v, tp, ep, replicas, ZeRO
    a micro-batch's bytes   c0 + c1·b, from b = 1 and 2: cp, tp, ep, sequence par., recomputation
    micro-batches at once   pp, v, m

Which rank is the fullest: from one rank to the next there are no more layers and no more
micro-batches in flight, so it is the first rank, which has the embedding, or the last, which has
the logits. Where a model's first layers have no experts, it may be the first one without these.
"""

from collections import Counter
from dataclasses import dataclass, replace

from labkit.cost.architecture import Architecture
from labkit.cost.layout import Layout
from labkit.cost.layout_activations import part_activation_bytes
from labkit.cost.layout_memory import layout_memory, layout_working_memory
from labkit.cost.memory import Recipe, TrainingMemory
from labkit.cost.pipeline import in_flight_by_chunk
from labkit.cost.rank_parameters import StagePart, stage_parts

STEADY = 3  # micro-batches a pipeline rank, from which on more of them change nothing in flight
Kind = tuple[int, int, bool, bool]  # of a part: layers, those without experts, first?, last?


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a rank holds whatever the batch.

    Args:
        states: their activations do not count.
        working_bytes: what is alive for a moment in a step, at most.
    """

    states: TrainingMemory
    working_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.states.state_bytes + self.working_bytes

    def keeping(self, activation_bytes: int) -> tuple[TrainingMemory, int]:
        """The rank's memory with so many bytes of activations, and its working memory."""
        memory = TrainingMemory(
            parameter_bytes=self.states.parameter_bytes,
            gradient_bytes=self.states.gradient_bytes,
            optimizer_bytes=self.states.optimizer_bytes,
            activation_bytes=activation_bytes,
        )
        return memory, self.working_bytes


class FullestRank:
    """Answers for one model, one length of sequence, one recipe.

    Args:
        seq_len: tokens of a whole sequence.
        recipe: bytes a parameter.
    """

    def __init__(self, architecture: Architecture, *, seq_len: int, recipe: Recipe) -> None:
        self.architecture = architecture
        self.seq_len = seq_len
        self.recipe = recipe
        self._states: dict[tuple, list[Held]] = {}
        self._lines: dict[tuple, tuple[int, int]] = {}
        self._moments: dict[tuple, list[list[tuple[Kind, int]]]] = {}
        self._parts: dict[Kind, StagePart] = {}

    def memory(self, layout: Layout) -> tuple[TrainingMemory, int]:
        """Of the pipeline rank that holds most, and its working memory.

        Args:
            layout: one that `Layout.why_not` lets pass.
        """
        ranks, kept = self.states(layout), self.activation_bytes(layout)
        most = max(zip(ranks, kept, strict=True), key=lambda pair: pair[0].total_bytes + pair[1])
        return most[0].keeping(most[1])

    def states(self, layout: Layout) -> list[Held]:
        """What the ranks that may be the fullest hold besides activations."""
        each = layout
        key = (each.pp, each.chunks, each.tp, each.ep, each.replicas, each.zero)
        if key not in self._states:
            least = replace(layout, micro_batch_size=1, num_micro_batches=layout.pp)
            self._states[key] = [self._state(least, rank) for rank in self._ranks(layout.pp)]
        return self._states[key]

    def activation_bytes(self, layout: Layout) -> list[int]:
        """What the same ranks keep for backward, at their fullest moment."""
        each = layout
        m = min(each.num_micro_batches, STEADY * each.pp)
        where = (each.cp, each.tp, each.ep, each.sequence_parallel, each.recompute)
        most = []
        for rank in self._ranks(each.pp):
            totals = []
            for moment in self._at_once(layout, m, rank):
                total = 0
                for kind, count in moment:
                    constant, slope = self._lines.get((where, kind)) or self._line(layout, kind)
                    total += count * (constant + slope * each.micro_batch_size)
                totals.append(total)
            most.append(max(totals))
        return most

    def _state(self, layout: Layout, rank: int) -> Held:
        model, recipe = self.architecture, self.recipe
        states = layout_memory(model, layout, seq_len=self.seq_len, recipe=recipe, stage=rank)
        working = layout_working_memory(model, layout, recipe=recipe, stage=rank)
        return Held(states=states, working_bytes=working.total_bytes)

    def _ranks(self, pp: int) -> list[int]:
        mixed = self.architecture.num_dense_layers if self.architecture.num_experts else 0
        return sorted({*range(min(pp, mixed + 1)), pp - 1})

    def _at_once(self, layout: Layout, m: int, rank: int) -> list[list[tuple[Kind, int]]]:
        """Parts kept at once, by kind, at the moments that may be the fullest."""
        key = (layout.pp, layout.chunks, m, rank)
        if key not in self._moments:
            kinds = []
            for part in stage_parts(self.architecture.num_layers, layout, rank):
                dense = sum(layer < self.architecture.num_dense_layers for layer in part.layers)
                kinds.append((len(part.layers), dense, part.is_first, part.is_last))
                self._parts[kinds[-1]] = part
            found = set()
            for counts in in_flight_by_chunk(layout.pp, m, rank, layout.chunks):
                held: Counter[Kind] = Counter()
                for kind, count in zip(kinds, counts, strict=True):
                    held[kind] += count
                found.add(tuple(sorted(held.items())))
            self._moments[key] = [list(moment) for moment in _undominated(found)]
        return self._moments[key]

    def _line(self, layout: Layout, kind: Kind) -> tuple[int, int]:
        """Bytes of one micro-batch on a part: a constant, and more for each sequence in it."""
        each = layout
        where = (each.cp, each.tp, each.ep, each.sequence_parallel, each.recompute)
        one, two = (
            part_activation_bytes(
                self.architecture,
                replace(layout, micro_batch_size=size),
                self._parts[kind],
                seq_len=self.seq_len,
                recipe=self.recipe,
            )
            for size in (1, 2)
        )
        self._lines[where, kind] = (2 * one - two, two - one)
        return self._lines[where, kind]


def _undominated(moments: set[tuple[tuple[Kind, int], ...]]) -> list[tuple[tuple[Kind, int], ...]]:
    """Of the moments, those that no other has at least as many of every kind as."""

    def below(one: tuple, other: tuple) -> bool:
        pairs = zip(one, other, strict=True)
        return one != other and all(mine[1] <= theirs[1] for mine, theirs in pairs)

    return [one for one in moments if not any(below(one, other) for other in moments)]
