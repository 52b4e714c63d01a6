"""Which layouts there are for a number of ranks, and why others are none: the search space.

A layout is dp · pp · cp · ep · tp = N, and inside it micro-batches of b sequences, chunks v,
sequence parallelism, recomputation and ZeRO. What must divide what is `Layout.why_not`'s. A search
asks for more, so that a step is the batch that was asked for and no choice is without effect:

| choice         | asks for                                                   |
| -------------- | ---------------------------------------------------------- |
| dp · ep · b    | divides the batch; what is left are m micro-batches        |
| chunks v       | 1 on pp = 1; divides a rank's layers, ⌈L/pp⌉ or ⌊L/pp⌋     |
| sequence par.  | tp > 1                                                     |
| ZeRO 1, 2, 3   | more than one replica                                      |

A number that does not divide is refused once, for all layouts on the same five axes, so most of the
product is never formed. `why_not` answers for any single layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from labkit.cost.architecture import Architecture
from labkit.cost.layout import RECOMPUTE, Layout

ZERO = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained in one step, whatever the layout.

    Args:
        batch_size: sequences in a step, over all ranks.
    """

    architecture: Architecture
    seq_len: int
    batch_size: int


def divisors(number: int) -> list[int]:
    """All of them, growing."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def worlds(num_devices: int) -> Iterator[Layout]:
    """All ways to write N as dp · pp · cp · ep · tp, with nothing else decided."""
    for tp in divisors(num_devices):
        for pp in divisors(num_devices // tp):
            for cp in divisors(num_devices // (tp * pp)):
                for ep in divisors(num_devices // (tp * pp * cp)):
                    dp = num_devices // (tp * pp * cp * ep)
                    yield Layout(dp=dp, pp=pp, cp=cp, ep=ep, tp=tp)


def axes_refusal(job: Job, axes: Layout) -> str | None:
    """Why no layout on these five axes can be, with both numbers; None if they divide.

    Args:
        axes: a layout of which nothing but the five sizes counts.
    """
    plain = Layout(dp=axes.dp, pp=axes.pp, cp=axes.cp, ep=axes.ep, tp=axes.tp)
    if job.batch_size % (axes.dp * axes.ep):
        over = f"dp={axes.dp}" if axes.ep == 1 else f"dp·ep={axes.dp * axes.ep}"
        refused = f"batch of {job.batch_size} sequences does not divide over {over}"
        return plain.why_not(job.architecture, job.seq_len) or refused
    return plain.why_not(job.architecture, job.seq_len)


def why_not(job: Job, layout: Layout) -> str | None:
    """Why a layout is none of the search space's, whatever its memory; None if it is one."""
    refused = axes_refusal(job, layout) or layout.why_not(job.architecture, job.seq_len)
    return refused or _batch_refusal(job, layout) or _idle_refusal(job, layout)


def _batch_refusal(job: Job, layout: Layout) -> str | None:
    if layout.batch_size == job.batch_size:
        return None
    return (
        f"batch of {job.batch_size} sequences does not divide over dp·ep={layout.dp * layout.ep} "
        f"and {layout.num_micro_batches} micro-batches of {layout.micro_batch_size}: these are "
        f"{layout.batch_size}"
    )


def _idle_refusal(job: Job, layout: Layout) -> str | None:
    least, more = divmod(job.architecture.num_layers, layout.pp)
    if layout.chunks > 1 and layout.pp == 1:
        return f"{layout.chunks} chunks on pp=1: there is no pipeline to interleave"
    if least % layout.chunks and (least + (more > 0)) % layout.chunks:
        layers = f"{least} or {least + 1}" if more else f"{least}"
        return f"{layout.chunks} chunks over ranks of {layers} layers"
    if layout.sequence_parallel and layout.tp == 1:
        return "sequence parallelism on tp=1: there is nothing to share"
    if layout.zero and layout.replicas == 1:
        return f"ZeRO {layout.zero} over 1 replica: there is nothing to share"
    return None


def schedules(job: Job, axes: Layout) -> Iterator[tuple[int, int, int]]:
    """(b, m, v) on axes that divide: every micro-batch size, and the chunks that go with it."""
    sequences = job.batch_size // (axes.dp * axes.ep)
    least, more = divmod(job.architecture.num_layers, axes.pp)
    chunks = sorted({*divisors(least), *divisors(least + (more > 0))} - {least + 1})
    for size in divisors(sequences):
        m = sequences // size
        interleaved = axes.pp > 1 and m % axes.pp == 0
        for v in chunks if interleaved else (1,):
            yield size, m, v


def kept_choices(job: Job, axes: Layout) -> list[tuple[bool, str]]:
    """(sequence parallelism, recomputation) on axes that divide, the quicker ones first."""
    split = axes.tp > 1 and job.seq_len // axes.cp % axes.tp == 0
    return list(product((True, False) if split else (False,), RECOMPUTE))


def zero_choices(axes: Layout) -> tuple[int, ...]:
    """Stages of ZeRO that change something."""
    return ZERO if axes.replicas > 1 else (0,)


class Kept(NamedTuple):
    """What decides how much a rank keeps, in a layout whose sizes are given."""

    sequence_parallel: bool
    recompute: str
    zero: int


def as_quick(one: Layout | Kept, other: Layout | Kept) -> bool:
    """Whether a layout is no slower than another, where they differ in what a rank keeps only.

    Recomputation only adds work. Sequence parallelism sends as many bytes as without, and its norms
    and residual sums touch a part of the tokens. Of ZeRO's stages 2 sends no less than 1, and 3 no
    less than 2; stage 0 is compared with none, for its exchange is another one.
    """
    return (
        one.sequence_parallel >= other.sequence_parallel
        and RECOMPUTE.index(one.recompute) <= RECOMPUTE.index(other.recompute)
        and (one.zero == other.zero or 0 < one.zero < other.zero)
    )
