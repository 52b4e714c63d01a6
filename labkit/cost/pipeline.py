"""What a pipeline costs: idle time by two definitions, micro-batches in flight, bytes.

p ranks, m micro-batches, v chunks a rank; t_F and t_B = t_I + t_W seconds of one micro-batch on one
stage, which is one chunk of a rank. The bubble is what the longest rank idles from its first action
to its last; its work is m·v·(t_F + t_B).

| schedule    | v | bubble                       | in flight on rank r, at most             |
| ----------- | - | ---------------------------- | ---------------------------------------- |
| naive       | 1 | m(p − 1)(t_F + t_B)          | 1                                        |
| GPipe       | 1 | (p − 1)(t_F + t_B)           | m                                        |
| 1F1B        | 1 | (p − 1)(t_F + t_B)           | min(m, p − r)                            |
| interleaved | v | (p − 1)(t_F + t_B)           | min(v·m, 2(p − 1 − r) + (v − 1)p + 1)    |
| ZB-H1       | 1 | (p − 1)(t_F + t_I − t_W)     | min(m, p)                                |
| ZB-V        | 2 | 2(p − 1)(t_F − t_W)          | 2·min(m, p)                              |
| DualPipeV   | 2 | (p − 1)(t_F&B + t_B − 3·t_W) | 2p + 1                                   |

ZB-H1's holds for m ≥ p and t_W at most t_F and t_I; ZB-V's for m ≥ 2p − 1 and t_W at most
t_F = t_I, and is 0, as published, only where all three are equal; DualPipeV's is its authors', who
run an F and a B at once in t_F&B. Stages of v chunks are a v-th as deep: whoever compares them with
those of v = 1 gives them a v-th of the seconds, and counts a v-th of what is in flight.

Two definitions of the bubble's share are in use: over ideal time, bubble / work, which is (p − 1)/m
for GPipe and 1F1B; over the step, bubble / (work + bubble), which is (p − 1)/(m + p − 1).

A boundary between two ranks is crossed by every micro-batch, forward by S bytes of activation and
backward by S bytes of its gradient. A loop of v chunks has v·p − 1 boundaries; in a V the v − 1
turns stay on one rank, which leaves v(p − 1).

Units: `*_s` seconds, `*_bytes` bytes; `stage_s` is t_F + t_B.

Sources: Huang et al. 2018, "GPipe", arXiv 1811.06965; Narayanan et al. 2021, "Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2; Qi et al.
2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241; Qi et al. 2024, "Pipeline Parallelism
with Controllable Memory", arXiv 2405.15362; DeepSeek-AI's DualPipe repository for DualPipeV.
"""


def work_s(num_micro_batches: int, stage_s: float, chunks: int = 1) -> float:
    """m·v·(t_F + t_B): what every rank computes in a step."""
    return num_micro_batches * chunks * stage_s


def naive_bubble_s(num_ranks: int, num_micro_batches: int, stage_s: float) -> float:
    """m(p − 1)(t_F + t_B): each micro-batch goes there and back alone."""
    return num_micro_batches * (num_ranks - 1) * stage_s


def fill_and_drain_bubble_s(num_ranks: int, stage_s: float) -> float:
    """(p − 1)(t_F + t_B): GPipe, 1F1B, and interleaved, whose stages are a v-th as deep."""
    return (num_ranks - 1) * stage_s


def zero_bubble_h1_bubble_s(
    num_ranks: int, forward_s: float, input_s: float, weight_s: float
) -> float:
    """(p − 1)(t_F + t_I − t_W), where m ≥ p and t_W is at most t_F and t_I."""
    return (num_ranks - 1) * (forward_s + input_s - weight_s)


def zero_bubble_v_bubble_s(
    num_ranks: int, num_micro_batches: int, forward_s: float, weight_s: float | None = None
) -> float:
    """2(p − 1)(t_F − t_W) + 2·max(0, 2p − 1 − m)·t_W where t_F = t_I; for others, simulate.

    Args:
        num_ranks: p.
        num_micro_batches: m; at least p, unless all durations are equal.
        forward_s: t_F, and as much for t_I.
        weight_s: t_W, at most t_F; as much as t_F if not given.
    """
    weight_s = forward_s if weight_s is None else weight_s
    missing = max(0, 2 * num_ranks - 1 - num_micro_batches)
    return 2 * (num_ranks - 1) * (forward_s - weight_s) + 2 * missing * weight_s


def dual_pipe_v_bubble_s(
    num_ranks: int, together_s: float, backward_s: float, weight_s: float
) -> float:
    """(p − 1)(t_F&B + t_B − 3·t_W): its authors', where an F and a B run at once in t_F&B."""
    return (num_ranks - 1) * (together_s + backward_s - 3 * weight_s)


def bubble_over_ideal(bubble_s: float, work_s: float) -> float:
    """Idle time over working time."""
    return bubble_s / work_s


def bubble_over_step(bubble_s: float, work_s: float) -> float:
    """Idle time over all time; x over ideal time is x/(1 + x) over the step."""
    return bubble_s / (work_s + bubble_s)


def gpipe_in_flight(num_micro_batches: int) -> int:
    """m: all forwards come first."""
    return num_micro_batches


def one_f_one_b_in_flight(num_ranks: int, num_micro_batches: int, rank: int) -> int:
    """min(m, p − r): a rank waits for its first gradient with one forward per later rank."""
    return min(num_micro_batches, num_ranks - rank)


def interleaved_in_flight(num_ranks: int, num_micro_batches: int, rank: int, chunks: int) -> int:
    """min(v·m, 2(p − 1 − r) + (v − 1)p + 1), counted per chunk."""
    ahead = 2 * (num_ranks - 1 - rank) + (chunks - 1) * num_ranks
    return min(chunks * num_micro_batches, ahead + 1)


def zero_bubble_h1_in_flight(num_ranks: int, num_micro_batches: int) -> int:
    """min(m, p), on the fullest rank; with m ≥ p on every rank."""
    return min(num_micro_batches, num_ranks)


def zero_bubble_v_in_flight(num_ranks: int, num_micro_batches: int) -> int:
    """2·min(m, p), counted per chunk, on the fullest rank."""
    return 2 * min(num_micro_batches, num_ranks)


def dual_pipe_v_in_flight(num_ranks: int) -> int:
    """2p + 1, counted per chunk, on every rank."""
    return 2 * num_ranks + 1


def loop_bytes_sent(
    num_ranks: int, num_micro_batches: int, boundary_bytes: int, rank: int, chunks: int = 1
) -> int:
    """What a rank sends a step: 2·m·v·S, less m·S on the first and on the last rank.

    The first stage sends no gradient and the last no activation. A group of one sends nothing.
    """
    if num_ranks == 1:
        return 0
    ends = (rank == 0) + (rank == num_ranks - 1)
    return num_micro_batches * boundary_bytes * (2 * chunks - ends)


def v_bytes_sent(
    num_ranks: int, num_micro_batches: int, boundary_bytes: int, rank: int, chunks: int = 2
) -> int:
    """What a rank sends a step: m·v·S to each neighbour; a turn sends nothing."""
    neighbours = (rank > 0) + (rank < num_ranks - 1)
    return num_micro_batches * boundary_bytes * chunks * neighbours


def in_flight_by_chunk(
    num_ranks: int, num_micro_batches: int, rank: int, chunks: int = 1
) -> list[tuple[int, ...]]:
    """Micro-batches of each chunk in flight after each forward of a rank, for 1F1B and interleaved.

    Where chunks are of different sizes, the fullest moment is that of the largest sum of bytes.
    """
    if chunks == 1:
        return [(one_f_one_b_in_flight(num_ranks, num_micro_batches, rank),)]
    ahead = 2 * (num_ranks - 1 - rank) + (chunks - 1) * num_ranks
    forwards = chunks * num_micro_batches
    counts, moments = [0] * chunks, []
    for turn in range(forwards):
        if turn > ahead:  # the backward before it; chunks come back in reverse
            counts[chunks - 1 - (turn - ahead - 1) // num_ranks % chunks] -= 1
        counts[turn // num_ranks % chunks] += 1
        moments.append(tuple(counts))
    return moments
