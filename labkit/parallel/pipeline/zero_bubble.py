"""Schedules that split the backward: ZB-H1, ZB-V, DualPipeV.

The next rank waits for the gradient of the input (I) only. The gradient of the weights (W) is
waited for by nobody before the optimizer, so it can fill what would be idle time. p ranks, m
micro-batches, seconds of one micro-batch on one stage; the bubble is the longest rank's idle time
between its first action and its last.

| schedule  | chunks | bubble                   | where                       | in flight, at most |
| --------- | ------ | ------------------------ | --------------------------- | ------------------ |
| ZB-H1     | 1      | (p − 1)(t_F + t_I − t_W) | m ≥ p, t_W ≤ t_F, t_W ≤ t_I | min(m, p)          |
| ZB-V      | 2      | 2(p − 1)(t_F − t_W)      | m ≥ 2p − 1, t_W ≤ t_F = t_I | 2·min(m, p)        |
| DualPipeV | 2      | (p − 1)(t_F + t_I − t_W) | t_W ≤ t_F = t_I             | 2p + 1             |

A stage of the two V-shaped schedules is half as deep as one of ZB-H1, so 2p of them hold what 1F1B
holds on its first rank. A micro-batch is in flight on a stage from its F to its B or W.

ZB-V is without a bubble only where all three take equally long. ZB-V's and DualPipeV's bubbles for
unequal durations are measured on the simulator; DualPipeV's authors run an F and a B at once, in
t_F&B, so that the one's messages hide under the other's compute, and give
(p − 1)(t_F&B + t_B − 3·t_W). Here the B follows the F, whose result the next rank has sooner.

Sources: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 2 and 6, and
Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362; DeepSeek-AI 2024,
"DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1: DualPipeV is its DualPipe, cut in
half, on half the ranks.
"""

from collections import Counter, deque
from typing import cast

from labkit.parallel.pipeline.actions import Action, Kind, Schedule
from labkit.parallel.pipeline.legality import require_legal


def zero_bubble(num_ranks: int, num_micro_batches: int) -> Schedule:
    """ZB-H1: 1F1B whose rank r does each W r micro-batches after its I; in flight ≤ p."""
    require_legal("zero_bubble", num_ranks, num_micro_batches)
    ranks = []
    for rank in range(num_ranks):
        ahead = min(num_ranks - 1 - rank, num_micro_batches)
        row = [Action("F", i) for i in range(ahead)]
        for i in range(num_micro_batches):
            row += [Action("F", ahead + i)] if ahead + i < num_micro_batches else []
            row += [Action("I", i)]
            row += [Action("W", i - rank)] if i >= rank else []
        late = min(rank, num_micro_batches)
        row += [Action("W", i) for i in range(num_micro_batches - late, num_micro_batches)]
        ranks.append(tuple(row))
    return Schedule(
        name="zero_bubble",
        num_stages_per_rank=1,
        placement="loop",
        num_micro_batches=num_micro_batches,
        ranks=tuple(ranks),
    )


def zero_bubble_v(num_ranks: int, num_micro_batches: int) -> Schedule:
    """ZB-V: two chunks a rank in a V, each third of a turn an F, an I, a W.

    A pipeline of p ranks is full with 2p − 1 micro-batches. With fewer, the schedule is that of
    2p − 1 without the actions of those that are missing.
    """
    require_legal("zero_bubble_v", num_ranks, num_micro_batches)
    filled = max(num_micro_batches, 2 * num_ranks - 1)
    ranks = []
    for rank in range(num_ranks):
        later = num_ranks - rank
        row = play(
            ("F0", 2 * later - 1),
            ("F1 F0", rank),
            ("F1 I1 W1", later),
            ("F0 I0 W0 F1 I1 W1", filled - 2 * num_ranks + 1 + rank),
            ("I0 W0 F1 I1 W1", later - 1),
            ("I0 I1", rank),
            ("I0 W0", later),
            ("W1", rank),
            ("W0", rank),
        )
        ranks.append(tuple(action for action in row if action.micro_batch < num_micro_batches))
    return in_a_v("zero_bubble_v", num_micro_batches, ranks)


def dual_pipe_v(num_ranks: int, num_micro_batches: int) -> Schedule:
    """DualPipeV: a forward of one chunk beside a backward of the other, W where a rank would idle.

    Its authors run each F and the B after it at once; here they follow one another.
    """
    require_legal("dual_pipe_v", num_ranks, num_micro_batches)
    ranks = []
    for rank in range(num_ranks):
        later = num_ranks - 1 - rank
        whole, split = ["B1", "B0"] * (rank + 1), ["I1", "I0"] * (rank + 1)
        row = play(
            ("F0", 2 * later),
            ("F0 F1", rank + 1),
            ("I1 W F1", later),
            ("F0 B1 F1 B0", num_micro_batches - 2 * num_ranks + 1 + rank),
            ("B1 F1 B0", later),
            (" ".join(whole[: rank + 1] + split[rank + 1 :]), 1),
            ("W I0", later),
            ("W", rank + 1),
        )
        ranks.append(tuple(row))
    return in_a_v("dual_pipe_v", num_micro_batches, ranks)


def play(*phases: tuple[str, int]) -> list[Action]:
    """Write phases out: `("F0 I1", 3)` is three times an F of chunk 0, then an I of chunk 1.

    The micro-batches of a chunk pass each kind in order. A B counts as I and W; a W without a chunk
    is that of the oldest I that still waits for it.
    """
    passed: Counter[tuple[str, int]] = Counter()
    waiting: deque[tuple[int, int]] = deque()
    row = []
    for token in (token for tokens, times in phases for token in tokens.split() * times):
        if token == "W":
            micro_batch, chunk = waiting.popleft()
            row.append(Action("W", micro_batch, chunk))
            continue
        kind, chunk = cast(Kind, token[0]), int(token[1:])
        order = "I" if kind == "B" else kind
        micro_batch = passed[order, chunk]
        passed[order, chunk] += 1
        if kind == "I":
            waiting.append((micro_batch, chunk))
        row.append(Action(kind, micro_batch, chunk))
    return row


def in_a_v(name: str, num_micro_batches: int, ranks: list[tuple[Action, ...]]) -> Schedule:
    return Schedule(
        name=name,
        num_stages_per_rank=2,
        placement="v",
        num_micro_batches=num_micro_batches,
        ranks=tuple(ranks),
    )
