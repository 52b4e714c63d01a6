"""Collectives made by hand, out of send and receive only.

S bytes on each of N ranks. In a round every rank sends at most one message and receives at most
one; the first rank of the naive version has N-1 to do in each of two phases, one after another.

| function            | rounds     | most sent by one rank | sent by all |
| ------------------- | ---------- | --------------------- | ----------- |
| naive_all_reduce    | 2 (N-1)    | (N-1) S               | 2 (N-1) S   |
| ring_reduce_scatter | N-1        | (N-1)/N S             | (N-1) S     |
| ring_all_gather     | N-1        | (N-1) S               | N (N-1) S   |
| ring_all_reduce     | 2 (N-1)    | 2 (N-1)/N S           | 2 (N-1) S   |
| tree_broadcast      | ⌈log2 N⌉   | ⌈log2 N⌉ S            | (N-1) S     |
| tree_reduce         | ⌈log2 N⌉   | S                     | (N-1) S     |
| tree_all_reduce     | 2 ⌈log2 N⌉ | ⌈log2 N⌉ S            | 2 (N-1) S   |

hierarchical_all_reduce, for M hosts of L ranks: 2 (L-1) + 2 (M-1) rounds; a rank sends 2 (L-1)/L S
inside its host and 2 (M-1)/M S/L to other hosts.

A ring asks the least of its busiest rank, a tree takes the fewest rounds: long tensors want a ring,
short ones a tree.

Chunks are those of `torch.tensor_split`: of n elements over N ranks, the first n mod N chunks hold
one more, and a chunk may be empty (its message is sent all the same). Every function returns a new
tensor, leaves x as it was, takes any strides and any dtype that can be added, and needs the same
shape on every rank. No gradient flows.
Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms (2009); Thakur, Rabenseifner and
Gropp, Optimization of collective communication operations in MPICH (2005).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from labkit.comm.devices import require_device


def naive_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum x over the group: the first rank collects every tensor, adds, and sends the sum back."""
    require_device(x, group)
    first, *others = dist.get_process_group_ranks(group)
    total = copy_of(x)
    if dist.get_rank() == first:
        received = torch.empty_like(total)
        for other in others:
            dist.recv(received, other, group)
            total += received
        for other in others:
            dist.send(total, other, group)
    else:
        dist.send(total, first, group)
        dist.recv(total, first, group)
    return total


def shift(outgoing: torch.Tensor, incoming: torch.Tensor, group: dist.ProcessGroup) -> None:
    """One round of a ring: send to the next rank, receive from the one before."""
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    before, after = ranks[place - 1], ranks[(place + 1) % len(ranks)]
    receive = dist.P2POp(dist.irecv, incoming, before, group)
    send = dist.P2POp(dist.isend, outgoing, after, group)
    # Both are posted before either is waited for: if all sent first, all would wait.
    for work in dist.batch_isend_irecv([receive, send]):
        work.wait()


def ring_reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum x over the group and keep one chunk: every rank adds, none is the bottleneck.

    Chunk c sets out from rank c+1 and travels round to rank c; each rank on its way
    adds its own part.

    Returns:
        Chunk `rank` of the flattened sum, [n/N].
    """
    require_device(x, group)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.detach().contiguous().view(-1).tensor_split(size)
    partial = chunks[rank - 1].clone()  # index -1 is the last: it goes round
    for step in range(2, size + 1):
        mine = chunks[rank - step]
        received = torch.empty_like(mine)
        shift(partial, received, group)
        partial = received.add_(mine)
    return partial


def pass_around(chunks: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Fill every chunk on every rank, where rank r comes with chunk r filled.

    In each round a rank hands on the chunk that it got in the round before.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for step in range(size - 1):
        shift(chunks[rank - step], chunks[rank - step - 1], group)


def ring_all_gather(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The tensors of all ranks, one after another along dim 0, on every rank."""
    require_device(x, group)
    x = torch.atleast_1d(x.detach())
    gathered = x.new_empty(dist.get_world_size(group), *x.shape)  # [N, d, ...]
    gathered[dist.get_rank(group)] = x
    pass_around(gathered.unbind(), group)
    return gathered.flatten(0, 1)  # [N d, ...]


def ring_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum x over the group: reduce-scatter, then all-gather, both round the ring.

    A rank sends 2S bytes less two chunks: its own in the first half, its successor's
    in the second.
    """
    total = x.detach().new_empty(x.shape)
    chunks = total.view(-1).tensor_split(dist.get_world_size(group))
    chunks[dist.get_rank(group)].copy_(ring_reduce_scatter(x, group))
    pass_around(chunks, group)
    return total


def hierarchical_all_reduce(
    x: torch.Tensor, intra_group: dist.ProcessGroup, inter_group: dist.ProcessGroup
) -> torch.Tensor:
    """Sum x over hosts: between them goes only this rank's chunk of its host's sum.

    Args:
        x: the same shape on every rank.
        intra_group: the ranks of this host.
        inter_group: the ranks that have this rank's place on the other hosts.
    """
    total = x.detach().new_empty(x.shape)
    chunks = total.view(-1).tensor_split(dist.get_world_size(intra_group))
    of_host = ring_reduce_scatter(x, intra_group)
    chunks[dist.get_rank(intra_group)].copy_(ring_all_reduce(of_host, inter_group))
    pass_around(chunks, intra_group)
    return total


def ranks_from(group_root: int, group: dist.ProcessGroup) -> list[int]:
    """Global ranks of the group, from its root round to the one before."""
    ranks = dist.get_process_group_ranks(group)
    if not 0 <= group_root < len(ranks):
        raise ValueError(f"group_root {group_root} in a group of {len(ranks)} ranks")
    return ranks[group_root:] + ranks[:group_root]


def tree_broadcast(x: torch.Tensor, group: dist.ProcessGroup, group_root: int = 0) -> torch.Tensor:
    """The root's tensor on every rank: in each round, everybody who has it tells one more rank.

    Args:
        x: what to send; elsewhere than at the root it tells shape and dtype only.
        group: who takes part.
        group_root: position of the root in the group; places in the tree count from there.
    """
    require_device(x, group)
    ranks = ranks_from(group_root, group)
    place, distance = ranks.index(dist.get_rank()), 1
    result = copy_of(x)
    while distance < len(ranks):
        if place < distance and place + distance < len(ranks):
            dist.send(result, ranks[place + distance], group)
        elif distance <= place < 2 * distance:
            dist.recv(result, ranks[place - distance], group)
        distance *= 2
    return result


def tree_reduce(x: torch.Tensor, group: dist.ProcessGroup, group_root: int = 0) -> torch.Tensor:
    """Sum x to the root: the broadcast's rounds backwards, every message the other way.

    Returns:
        The sum at the root; elsewhere the part of it that this rank passed on.
    """
    require_device(x, group)
    ranks = ranks_from(group_root, group)
    place, distance = ranks.index(dist.get_rank()), 1 << (len(ranks) - 1).bit_length()
    total = copy_of(x)
    received = torch.empty_like(total)
    while (distance := distance // 2) > 0:
        if place < distance and place + distance < len(ranks):
            dist.recv(received, ranks[place + distance], group)
            total += received
        elif distance <= place < 2 * distance:
            dist.send(total, ranks[place - distance], group)
    return total


def tree_all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum x over the group: up the tree to the first rank, and down again."""
    return tree_broadcast(tree_reduce(x, group), group)


def copy_of(x: torch.Tensor) -> torch.Tensor:
    """A new tensor in row-major order: what is sent must lie in memory as it is counted."""
    return x.detach().clone(memory_format=torch.contiguous_format)
