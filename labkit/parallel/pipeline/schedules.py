"""Schedules whose backward is whole: naive, GPipe, 1F1B, and 1F1B interleaved over several chunks.

p ranks, m micro-batches, t_F and t_B seconds a micro-batch and stage. The bubble is a rank's idle
time; over the ideal time m(t_F + t_B) it is

| schedule    | bubble over ideal time | micro-batches in flight on rank r, at most |
| ----------- | ---------------------- | ------------------------------------------ |
| naive       | p − 1                  | 1                                          |
| GPipe       | (p − 1)/m              | m                                          |
| 1F1B        | (p − 1)/m              | min(m, p − r)                              |
| interleaved | (p − 1)/(v·m)          | min(v·m, 2(p − 1 − r) + (v − 1)p + 1)      |

Interleaved counts per chunk; its v chunks are each a v-th as deep.
At equal m, GPipe and 1F1B have the same bubble: what 1F1B saves is memory.

Sources: Huang et al. 2018, "GPipe", arXiv 1811.06965; Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2 (1F1B is
its PipeDream-Flush).
"""

from labkit.parallel.pipeline.actions import Action, Schedule
from labkit.parallel.pipeline.legality import require_legal


def naive(num_ranks: int, num_micro_batches: int) -> Schedule:
    """One micro-batch at a time, there and back: at any moment one rank works."""
    require_legal("naive", num_ranks, num_micro_batches)
    row = [Action(kind, i) for i in range(num_micro_batches) for kind in ("F", "B")]
    return Schedule(
        name="naive",
        num_stages_per_rank=1,
        placement="loop",
        num_micro_batches=num_micro_batches,
        ranks=(tuple(row),) * num_ranks,
    )


def gpipe(num_ranks: int, num_micro_batches: int) -> Schedule:
    """All forwards, then all backwards."""
    require_legal("gpipe", num_ranks, num_micro_batches)
    row = [Action(kind, i) for kind in ("F", "B") for i in range(num_micro_batches)]
    return Schedule(
        name="gpipe",
        num_stages_per_rank=1,
        placement="loop",
        num_micro_batches=num_micro_batches,
        ranks=(tuple(row),) * num_ranks,
    )


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> Schedule:
    """p − 1 − r forwards to fill the pipeline, then a forward and a backward in turn."""
    require_legal("one_f_one_b", num_ranks, num_micro_batches)
    forwards = [Action("F", i) for i in range(num_micro_batches)]
    backwards = [Action("B", i) for i in range(num_micro_batches)]
    return Schedule(
        name="one_f_one_b",
        num_stages_per_rank=1,
        placement="loop",
        num_micro_batches=num_micro_batches,
        ranks=tuple(
            one_in_turn(forwards, backwards, num_ranks - 1 - rank) for rank in range(num_ranks)
        ),
    )


def interleaved(num_ranks: int, num_micro_batches: int, chunks: int = 2) -> Schedule:
    """1F1B over v chunks a rank: each rank takes p micro-batches through a chunk, then the next.

    Rank r runs 2(p − 1 − r) + (v − 1)p forwards to fill the pipeline: a chunk's gradient comes back
    only after all later chunks have had their turn.
    """
    require_legal("interleaved", num_ranks, num_micro_batches, chunks)
    turns = [
        (first + i, chunk)
        for first in range(0, num_micro_batches, num_ranks)
        for chunk in range(chunks)
        for i in range(num_ranks)
    ]
    forwards = [Action("F", i, chunk) for i, chunk in turns]
    backwards = [Action("B", i, chunks - 1 - chunk) for i, chunk in turns]
    warm_up = [2 * (num_ranks - 1 - rank) + (chunks - 1) * num_ranks for rank in range(num_ranks)]
    return Schedule(
        name="interleaved",
        num_stages_per_rank=chunks,
        placement="loop",
        num_micro_batches=num_micro_batches,
        ranks=tuple(one_in_turn(forwards, backwards, ahead) for ahead in warm_up),
    )


def one_in_turn(
    forwards: list[Action], backwards: list[Action], num_warm_up: int
) -> tuple[Action, ...]:
    """`num_warm_up` forwards (at most all), then one forward, one backward, then the rest."""
    ahead = min(num_warm_up, len(forwards))
    turns = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *turns, *backwards[len(forwards) - ahead :])
