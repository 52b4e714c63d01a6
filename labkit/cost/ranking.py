"""What a search for a layout answers: candidates with their reasons, fastest first."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from labkit.cost.candidates import Job, Kept
from labkit.cost.fullest_rank import Held
from labkit.cost.layout import Layout
from labkit.cost.memory import TrainingMemory
from labkit.cost.step_time import StepTime


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One layout's answer.

    Args:
        budget_bytes: of a device's memory, that a layout may fill.
        refusal: what does not divide; empty where all does.
        memory: of the fullest pipeline rank; None where a number does not divide.
        working_bytes: that the rank has for a moment besides: what ZeRO gathers and sends.
        step: predicted; None where it does not fit, or where `instead` is no slower.
        instead: a layout that fits, keeps more of something else, and is no slower.
        num_layouts: that this answer stands for, where one reason holds for several.
    """

    layout: Layout
    budget_bytes: int
    refusal: str = ""
    memory: TrainingMemory | None = None
    working_bytes: int = 0
    step: StepTime | None = None
    instead: Layout | None = None
    num_layouts: int = 1

    @property
    def feasible(self) -> bool:
        return self.memory is not None and self.needed_bytes <= self.budget_bytes

    @property
    def needed_bytes(self) -> int:
        """States, activations and working memory; 0 where a number does not divide."""
        return self.memory.total_bytes + self.working_bytes if self.memory else 0

    @property
    def parts_bytes(self) -> dict[str, int]:
        """What is needed, by name."""
        if self.memory is None:
            return {}
        return {
            "activations": self.memory.activation_bytes,
            "optimizer state": self.memory.optimizer_bytes,
            "gradients": self.memory.gradient_bytes,
            "parameters": self.memory.parameter_bytes,
            "working memory": self.working_bytes,
        }

    @property
    def largest_part(self) -> str:
        return max(self.parts_bytes, key=self.parts_bytes.__getitem__)

    @property
    def reason(self) -> str:
        """Why it is feasible or not, with the numbers that decide."""
        if self.memory is None:
            return self.refusal
        needs = f"needs {_gb(self.needed_bytes)} of {_gb(self.budget_bytes)} GB"
        if self.instead is not None:
            how = f"ZeRO {self.instead.zero}, recompute={self.instead.recompute}"
            how += ", sequence parallel" if self.instead.sequence_parallel else ""
            return f"fits: {needs}, but with {how} it fits too and is no slower"
        if self.feasible:
            return f"fits: {needs}"
        part = self.largest_part
        verb = "are" if part.endswith("s") else "is"
        return f"{needs}: {part} {verb} {_gb(self.parts_bytes[part])} GB, the largest part"


class Needless(NamedTuple):
    """A layout that fits where `instead` does no worse; short, for there are many."""

    instead: Layout
    kept: Kept
    held: Held
    activation_bytes: int


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Answers for the whole search space.

    Args:
        fitting: the fastest first.
        unpriced: what fits, but recomputes or shards more than it need.
        too_large: what divides but does not fit, the nearest miss first; one answer, the nearest,
            for layouts that differ in ZeRO, recomputation and sequence parallelism only.
        refused: what does not divide, one answer for all layouts on the same five axes.
    """

    job: Job
    num_devices: int
    budget_bytes: int
    fitting: tuple[Candidate, ...]
    unpriced: tuple[Needless, ...]
    too_large: tuple[Candidate, ...]
    refused: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        return self.fitting[0] if self.fitting else None

    @property
    def nearest_miss(self) -> Candidate | None:
        """The layout that lacks the fewest bytes; None if everything fits."""
        return self.too_large[0] if self.too_large else None

    @property
    def num_fitting(self) -> int:
        return len(self.fitting) + len(self.unpriced)

    @property
    def needless(self) -> Iterator[Candidate]:
        """The unpriced layouts as answers."""
        for each in self.unpriced:
            memory, working_bytes = each.held.keeping(each.activation_bytes)
            yield Candidate(
                layout=replace(each.instead, **each.kept._asdict()),
                budget_bytes=self.budget_bytes,
                memory=memory,
                working_bytes=working_bytes,
                instead=each.instead,
            )

    @property
    def num_layouts(self) -> int:
        """Layouts whose memory was counted."""
        return self.num_fitting + self.num_too_large

    @property
    def num_too_large(self) -> int:
        return sum(each.num_layouts for each in self.too_large)

    def tokens_per_s(self, candidate: Candidate) -> float:
        assert candidate.step is not None, "only a layout that fits has a step time"
        return self.job.seq_len * self.job.batch_size / candidate.step.total_s

    def by_largest_part(self) -> list[tuple[str, int]]:
        """Of what does not fit: its largest part, and how many layouts; most first."""
        found: Counter[str] = Counter()
        for each in self.too_large:
            found[each.largest_part] += each.num_layouts
        return found.most_common()

    def by_refusal(self) -> list[tuple[str, int]]:
        """Of the axes that do not divide: an example of each kind of reason, and how many."""
        first: dict[str, str] = {}
        found: Counter[str] = Counter()
        for each in self.refused:
            kind = re.sub(r"\d+", "", each.refusal)
            first.setdefault(kind, each.refusal)
            found[kind] += 1
        return [(first[kind], count) for kind, count in found.most_common()]


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"
