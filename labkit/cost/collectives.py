"""What collectives cost: bytes by convention, and seconds by the α–β model.

A message of S bytes takes α + S·β: α is the latency, β the seconds a byte takes on one link in one
direction (1 / bandwidth). A rank sends one message and receives one at a time (single port, full
duplex), all links are alike, and the arithmetic of a reduction is free. N ranks, S bytes:

| algorithm                         | seconds                                     |
| --------------------------------- | ------------------------------------------- |
| ring reduce-scatter, all-to-all   | (N−1)(α + S/N·β)                            |
| ring all-gather                   | (N−1)(α + S·β)                              |
| ring all-reduce                   | 2(N−1)(α + S/N·β)                           |
| binomial broadcast, reduce        | ⌈log2 N⌉(α + S·β)                           |
| binomial all-reduce               | 2⌈log2 N⌉(α + S·β)                          |
| halving-doubling all-reduce       | 2·log2 N·α + 2(N−1)/N·S·β                   |
| double binary tree, one way       | 2(h + k − 1)(α + S/(2k)·β), h = ⌈log2 N⌉    |
| in the switch                     | 2α + S·β                                    |

S is `payload_bytes`, always one rank's input: of an all-gather it is the piece that the rank
brings, so an all-reduce of S is a reduce-scatter of S and an all-gather of S/N.

Units: `*_s` seconds, `alpha_s` seconds a message, `beta_s_per_byte` seconds a byte and a link.

Sources: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in
MPICH"; Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
workstations"; Sanders, Speck, Träff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; NVIDIA's NCCL documentation for what a library chooses from.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

# Bytes of one rank, as the ledger counts them: a convention, not the wire. They are exact: a share
# such as 2(N−1)/N·S need not be whole, so it is a Fraction, which equals an int where it is whole.


def all_reduce_bytes_sent(payload_bytes: int, group_size: int) -> Fraction:
    """2(N−1)/N·S; as much is received."""
    return Fraction(2 * (group_size - 1) * payload_bytes, group_size)


def reduce_scatter_bytes_sent(payload_bytes: int, group_size: int) -> Fraction:
    """(N−1)/N·S; as much is received."""
    return Fraction((group_size - 1) * payload_bytes, group_size)


def all_gather_bytes_sent(payload_bytes: int, group_size: int) -> Fraction:
    """(N−1)·S; as much is received."""
    return Fraction((group_size - 1) * payload_bytes)


def all_to_all_bytes_sent(payload_bytes: int, own_share_bytes: int) -> Fraction:
    """S less what the rank keeps for itself."""
    return Fraction(payload_bytes - own_share_bytes)


def root_bytes_sent(receiver_bytes: int, group_size: int) -> Fraction:
    """Broadcast and scatter: the root sends every other rank what one receiver gets."""
    return Fraction((group_size - 1) * receiver_bytes)


def root_bytes_received(sender_bytes: int, group_size: int) -> Fraction:
    """Reduce and gather: the root receives from every other rank what one sender sends."""
    return Fraction((group_size - 1) * sender_bytes)


def ring_all_reduce_bytes_sent(chunk_bytes: Sequence[int], rank: int) -> int:
    """Exact bytes that one rank of a real ring sends: 2S less two chunks of any size.

    In the reduce-scatter a rank sends every chunk but its own, which it ends up with;
    in the all-gather every chunk but its successor's, the last to arrive. All ranks
    together: 2(N−1)·S.
    """
    successor = (rank + 1) % len(chunk_bytes)
    return 2 * sum(chunk_bytes) - chunk_bytes[rank] - chunk_bytes[successor]


def message_time_s(payload_bytes: float, alpha_s: float, beta_s_per_byte: float) -> float:
    """α + S·β: one message over one link."""
    return alpha_s + payload_bytes * beta_s_per_byte


def ring_reduce_scatter_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """N−1 steps that pass on one chunk of S/N each."""
    step_s = message_time_s(payload_bytes / group_size, alpha_s, beta_s_per_byte)
    return (group_size - 1) * step_s


def ring_all_gather_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """N−1 steps that pass on one rank's whole piece each; every rank ends with N·S bytes."""
    return (group_size - 1) * message_time_s(payload_bytes, alpha_s, beta_s_per_byte)


def ring_all_reduce_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """A reduce-scatter, then an all-gather of the sums, as long again: 2(N−1) steps of S/N."""
    return 2 * ring_reduce_scatter_time_s(payload_bytes, group_size, alpha_s, beta_s_per_byte)


def pairwise_all_to_all_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """N−1 exchanges, each with another peer, of an equal share S/N."""
    step_s = message_time_s(payload_bytes / group_size, alpha_s, beta_s_per_byte)
    return (group_size - 1) * step_s


def tree_depth(group_size: int) -> int:
    """⌈log2 N⌉: the steps that a binomial tree needs to reach N ranks from one."""
    return (group_size - 1).bit_length()


def tree_broadcast_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """⌈log2 N⌉ steps that carry the whole payload; a reduce takes as long, the other way."""
    return tree_depth(group_size) * message_time_s(payload_bytes, alpha_s, beta_s_per_byte)


def tree_gather_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """⌈log2 N⌉ messages, and N−1 pieces of S over the root's link; a scatter of N·S likewise."""
    return tree_depth(group_size) * alpha_s + (group_size - 1) * payload_bytes * beta_s_per_byte


def tree_all_reduce_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """A reduce to one rank, then a broadcast from it, both binomial."""
    return 2 * tree_broadcast_time_s(payload_bytes, group_size, alpha_s, beta_s_per_byte)


def halving_doubling_all_reduce_time_s(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> float:
    """Recursive halving, then doubling: as few bytes as the ring and as few steps as the tree.

    Where N is no power of two, the ranks beyond the largest one below hand their whole payload to a
    partner first and get the result back last: two further messages of S.
    """
    steps = group_size.bit_length() - 1
    power = 2**steps
    core_s = 2 * (steps * alpha_s + (power - 1) / power * payload_bytes * beta_s_per_byte)
    folding = 2 * int(power != group_size)
    return core_s + folding * message_time_s(payload_bytes, alpha_s, beta_s_per_byte)


def double_tree_broadcast_time_s(
    payload_bytes: float,
    group_size: int,
    alpha_s: float,
    beta_s_per_byte: float,
    num_chunks: int,
) -> float:
    """Two binary trees carry half each in k chunks; a rank is inner in one, a leaf in the other.

    An inner rank serves its children in turn, so a chunk takes two steps a level and the next one
    follows two steps later. For large S the time tends to S·β. A reduce takes as long.
    """
    depth = tree_depth(group_size)
    steps = 2 * (depth + num_chunks - 1) if depth else 0  # a group of one sends nothing
    return steps * message_time_s(payload_bytes / (2 * num_chunks), alpha_s, beta_s_per_byte)


def double_tree_best_chunks(
    payload_bytes: float, group_size: int, alpha_s: float, beta_s_per_byte: float
) -> int:
    """The k that makes the double tree fastest: √((h−1)·S·β / 2α), or a whole neighbour of it.

    Raises:
        ValueError: without latency, where no number of chunks is the best.
    """
    if alpha_s <= 0:
        raise ValueError(f"the best number of chunks needs alpha_s > 0, got {alpha_s}")
    depth = tree_depth(group_size)
    ideal = math.sqrt(max(0, depth - 1) * payload_bytes * beta_s_per_byte / (2 * alpha_s))
    around = [max(1, math.floor(ideal)), max(1, math.ceil(ideal))]
    arguments = payload_bytes, group_size, alpha_s, beta_s_per_byte
    return min(around, key=lambda num_chunks: double_tree_broadcast_time_s(*arguments, num_chunks))


def hierarchical_all_reduce_time_s(
    payload_bytes: float,
    *,
    ranks_per_node: int,
    num_nodes: int,
    intra_alpha_s: float,
    intra_beta_s_per_byte: float,
    inter_alpha_s: float,
    inter_beta_s_per_byte: float,
) -> float:
    """Reduce-scatter in the node, all-reduce each share across nodes, all-gather in the node.

    Only S/ranks_per_node of every rank crosses the slow links, and all ranks of a node cross at
    once, each over a link of its own.
    """
    inside, across = (intra_alpha_s, intra_beta_s_per_byte), (inter_alpha_s, inter_beta_s_per_byte)
    inside_s = ring_all_reduce_time_s(payload_bytes, ranks_per_node, *inside)  # as its two halves
    return inside_s + ring_all_reduce_time_s(payload_bytes / ranks_per_node, num_nodes, *across)


def in_switch_all_reduce_time_s(
    payload_bytes: float, alpha_s: float, beta_s_per_byte: float
) -> float:
    """The switch adds (NVLS, SHARP): S goes up once and comes down once, both at the same time.

    It does not depend on N, and moves half of a large ring's bytes in each direction.
    """
    return 2 * alpha_s + payload_bytes * beta_s_per_byte


def ring_tree_crossover_bytes(group_size: int, alpha_s: float, beta_s_per_byte: float) -> float:
    """The payload from which on a ring all-reduce is at least as fast as a binomial one.

    2(N−1)(α + S/N·β) = 2L(α + S·β), L = ⌈log2 N⌉, gives S = α(N−1−L) / (β(L − (N−1)/N)). Up to
    three ranks the ring is as fast from 0 bytes on.

    Raises:
        ValueError: for a group of one, where both are free.
    """
    if group_size < 2:
        raise ValueError(f"ring and tree cross from 2 ranks on, got {group_size}")
    depth = tree_depth(group_size)
    extra_steps, saved_share = group_size - 1 - depth, depth - (group_size - 1) / group_size
    return alpha_s * extra_steps / (beta_s_per_byte * saved_share)
