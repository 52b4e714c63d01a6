"""How one tensor is cut over the ranks of a group, and put together again.

    piece = ceil(size / parts)            of dimension `dim`, the last ones filled up with zeros
    part of rank r among N = r * parts // N

`parts` is N where every rank has its own piece, fewer where neighbours hold the same one (two KV
heads on four ranks), and 1 where every rank holds the whole.

Cost: no communication. The pieces are copies: they keep nothing of the full tensor alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class Split:
    """The cut of one tensor: along which dimension, of which size, into how many pieces."""

    dim: int = 0
    size: int
    parts: int = 1

    @property
    def piece(self) -> int:
        """Size of one rank's piece along the dimension, padding included."""
        return -(-self.size // self.parts)

    def own_size(self, rank: int, world_size: int) -> int:
        """How much of a rank's piece is no padding."""
        start = self.part(rank, world_size) * self.piece
        return max(0, min(self.piece, self.size - start))

    def part(self, rank: int, world_size: int) -> int:
        """Which piece a rank holds."""
        if world_size % self.parts:
            raise ValueError(f"{self.parts} pieces do not divide over {world_size} ranks")
        return rank * self.parts // world_size

    def cut(self, full: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
        """The piece of a rank, in new memory.

        Raises:
            ValueError: if the tensor has another size along the dimension.
        """
        if full.dim() <= self.dim or full.shape[self.dim] != self.size:
            raise ValueError(f"a tensor of shape {tuple(full.shape)}, not {self.size} on {self!r}")
        shape = list(full.shape)
        shape[self.dim] = self.piece
        result = full.detach().new_zeros(shape)
        own = self.own_size(rank, world_size)
        if own:
            start = self.part(rank, world_size) * self.piece
            result.narrow(self.dim, 0, own).copy_(full.detach().narrow(self.dim, start, own))
        return result

    def locate(
        self, indices: torch.Tensor, rank: int, world_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions in a rank's piece, 0 for those of other ranks; and which are this rank's.

        Raises:
            ValueError: for an index outside of the full size.
        """
        check_indices(indices, self.size)
        local = indices - self.part(rank, world_size) * self.piece
        mine = (local >= 0) & (local < self.piece)
        return local.where(mine, 0), mine

    def join(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """The full tensor out of the pieces of all ranks, in rank order.

        Raises:
            ValueError: if two ranks that should hold the same piece do not, bit for bit.
        """
        owners: dict[int, int] = {}
        for rank, piece in enumerate(pieces):
            owner = owners.setdefault(self.part(rank, len(pieces)), rank)
            if not torch.equal(_bits(piece), _bits(pieces[owner])):
                raise ValueError(f"ranks {owner} and {rank} hold one piece and differ in it")
        full = torch.cat([pieces[owner].detach() for owner in owners.values()], self.dim)
        return full.narrow(self.dim, 0, self.size).contiguous()


def place_in(group: dist.ProcessGroup) -> tuple[int, int]:
    """(rank, size): this process's place in a group.

    Raises:
        ValueError: if the process is not in the group.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group it was given")
    return rank, dist.get_world_size(group)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().flatten().view(torch.uint8)  # a NaN equals itself here


def cut_fused(
    full: torch.Tensor, parts: Sequence[int], unit: int, rank: int, world_size: int
) -> torch.Tensor:
    """A rank's rows of a matrix that is several matrices on top of each other.

    Each is cut by itself. A plain cut of gate and up in one would give the first rank all the gates
    and the last all the ups.

    Args:
        full: [sum(parts) * unit, ...], such as Q, K and V, or gate and up.
        parts: units in each matrix, such as heads (4, 2, 2), or hidden units (F, F).
        unit: rows that stay together: the head width, or 1.
        rank, world_size: whose rows.

    Raises:
        ValueError: if the rows are not sum(parts) * unit, or a part does not divide.
    """
    if full.shape[0] != sum(parts) * unit:
        raise ValueError(
            f"fused parts {tuple(parts)} of {unit} rows each need {sum(parts) * unit} rows, "
            f"the tensor has {full.shape[0]}"
        )
    for count in parts:
        if count % world_size:
            raise ValueError(f"a fused part of {count} over {world_size} ranks: it must divide")
    pieces = full.split([count * unit for count in parts])
    cuts = [Split(size=len(piece), parts=world_size) for piece in pieces]
    return torch.cat(
        [cut.cut(piece, rank, world_size) for cut, piece in zip(cuts, pieces, strict=True)]
    )


def replica_group(group: dist.ProcessGroup, parts: int) -> dist.ProcessGroup:
    """The ranks of a group that hold the same piece as this one, as a group described as "kv".

    Every rank of `group` must call it, in the same order as its other groups.

    Raises:
        ValueError: if the pieces do not divide over the group.
    """
    rank, size = place_in(group)
    if size % parts:
        raise ValueError(f"{parts} pieces over {size} ranks: the number must divide")
    each, ranks = size // parts, dist.get_process_group_ranks(group)
    mine = ranks[rank // each * each :][:each]
    # Only the members meet: other lines of a mesh make their own groups at their own time.
    return dist.new_group(mine, use_local_synchronization=True, group_desc="kv", **_as_given(mine))


def check_indices(indices: torch.Tensor, size: int) -> None:
    """Raise a ValueError unless all indices are in [0, size). It makes a GPU wait."""
    if indices.numel():
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= size:
            raise ValueError(f"indices from {low} to {high}, and there are {size}")


def check_divides(what: str, count: int, size: int) -> None:
    """Raise a ValueError unless `count` things divide over `size` ranks."""
    if count % size:
        raise ValueError(f"{count} {what} over tp={size}: the number must divide")


def check_replicas(what: str, count: int, size: int, group: dist.ProcessGroup | None) -> None:
    """The same for things that several ranks hold where there are fewer than ranks.

    Raises:
        ValueError: if neither number divides the other, or the group of those who hold the same
            thing is missing or of another size.
    """
    if count >= size:
        return check_divides(what, count, size)
    if size % count:
        raise ValueError(f"{count} {what} over tp={size}: one number must divide the other")
    replicas = size // count
    if group is None:
        raise ValueError(
            f"{count} {what} over tp={size}: each is on {replicas} ranks, whose gradients must be "
            f"summed; give their group, replica_group(group, {count})"
        )
    if (given := place_in(group)[1]) != replicas:
        raise ValueError(f"a group of {given} ranks for {what} that {replicas} ranks hold")


def _as_given(ranks: list[int]) -> dict[str, Any]:
    # torch sorts the ranks of a group unless told not to; only recent versions can be told.
    return {} if ranks == sorted(ranks) else {"sort_ranks": False}
