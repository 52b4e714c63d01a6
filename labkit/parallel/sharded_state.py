"""Weights and optimizer state in shards: saved by one number of ranks, loaded by another.

A rank's state says of each piece where it begins in its parameter, so the shards of any world can
be put together, and cut anew for another. It serves the three stages alike:

    mine = state_dict(zero.pieces, zero.optimizer, group)             # or model.pieces
    whole = merge([shard of rank 0, shard of rank 1, ...])            # = full_state_dict(...)
    load_full_state(whole, zero.pieces, zero.optimizer)               # any number of ranks
    zero.gather_weights()                                             # stages 1 and 2

A number that an optimizer keeps for a parameter, such as AdamW's count of steps, is in each piece
and must be the same in all. Buffers are not in shards and not in here.

Cost: state_dict copies nothing. A whole state is as large as on one process; full_state_dict has
it on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm.pieces import Piece

FullState = dict[str, dict[str, torch.Tensor]]  # parameter: "weight" and the optimizer's tensors


@dataclass(frozen=True, kw_only=True)
class PieceState:
    """One rank's part of one parameter.

    Args:
        shape: of the whole parameter.
        start: of the piece in the flattened parameter.
        tensors: "weight" and the optimizer's, [elements of the piece] each, or single numbers.
    """

    shape: tuple[int, ...]
    start: int
    tensors: dict[str, torch.Tensor]

    @property
    def numel(self) -> int:
        return self.tensors["weight"].numel()


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """All that one of world_size ranks owns, by the names of the whole parameters."""

    rank: int
    world_size: int
    pieces: dict[str, PieceState]


def state_dict(
    pieces: Sequence[Piece], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> ShardState:
    """What this rank owns; the tensors are those in use, not copies."""
    found = {}
    for piece in pieces:
        state: dict[str, Any] = optimizer.state.get(piece.parameter, {})
        kept = {key: torch.as_tensor(value) for key, value in state.items() if value is not None}
        found[piece.name] = PieceState(
            shape=tuple(piece.shape),
            start=piece.start,
            tensors={"weight": piece.parameter.detach()} | kept,
        )
    return ShardState(
        rank=dist.get_rank(group), world_size=dist.get_world_size(group), pieces=found
    )


def full_state_dict(
    pieces: Sequence[Piece], optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> FullState:
    """The whole state, on every rank: in the shapes that one process would have."""
    shards: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(shards, state_dict(pieces, optimizer, group), group=group)
    return merge(shards)


def merge(shards: Sequence[ShardState]) -> FullState:
    """Put the shards of all ranks together.

    Raises:
        ValueError: if a rank is missing or there twice, or if shards differ in world size, in
            parameters or shapes, leave a hole, or keep different tensors of one parameter.
    """
    shards = _in_order(shards)
    first = shards[0]
    for shard in shards[1:]:
        if odd := first.pieces.keys() ^ shard.pieces.keys():
            raise ValueError(f"ranks 0 and {shard.rank}: only one of them has {min(odd)}")
    return {name: _whole(name, [shard.pieces[name] for shard in shards]) for name in first.pieces}


@torch.no_grad()
def load_full_state(
    full: FullState, pieces: Sequence[Piece], optimizer: torch.optim.Optimizer
) -> None:
    """Overwrite what this rank owns by its part of a whole state.

    Raises:
        ValueError: if names or shapes are others; nothing has been changed then.
    """
    names = {piece.name for piece in pieces}
    if odd := names ^ full.keys():
        name = min(odd)
        has, lacks = ("model", "state") if name in names else ("state", "model")
        raise ValueError(f"{name} is in the {has} and not in the {lacks}")
    for piece in pieces:
        if (shape := full[piece.name]["weight"].shape) != piece.shape:
            raise ValueError(
                f"{piece.name} is {tuple(shape)} in the state, {tuple(piece.shape)} in the model"
            )
    for piece in pieces:
        if piece.parameter.numel():
            cut = {key: _cut(value, piece) for key, value in full[piece.name].items()}
            piece.parameter.copy_(cut.pop("weight"))
            optimizer.state.pop(piece.parameter, None)
            if cut:
                optimizer.state[piece.parameter] = cut


def _cut(value: torch.Tensor, piece: Piece) -> torch.Tensor:
    if value.dim() == 0 and piece.shape:
        return value.clone()
    if value.numel() == 1:  # a parameter of one element: which are its numbers, does not matter
        return value.reshape(piece.parameter.shape).clone()
    return value.flatten()[piece.start : piece.start + piece.parameter.numel()].clone()


def _in_order(shards: Sequence[ShardState]) -> list[ShardState]:
    """By rank, each of them once."""
    if not shards:
        raise ValueError("0 shards: nothing to put together")
    size = shards[0].world_size
    for shard in shards:
        if shard.world_size != size:
            raise ValueError(
                f"the shard of rank {shards[0].rank} is of {size} ranks, "
                f"that of rank {shard.rank} of {shard.world_size}"
            )
    ranks = sorted(shard.rank for shard in shards)
    if ranks != list(range(size)):
        raise ValueError(f"shards of ranks {ranks} are there, not of 0 to {size - 1} each once")
    return sorted(shards, key=lambda shard: shard.rank)


def _whole(name: str, parts: list[PieceState]) -> dict[str, torch.Tensor]:
    """One parameter out of its pieces."""
    shape = torch.Size(parts[0].shape)
    if shapes := {part.shape for part in parts} - {tuple(shape)}:
        raise ValueError(f"{name} is {tuple(shape)} in one shard and {min(shapes)} in another")
    parts = sorted((part for part in parts if part.numel), key=lambda part: part.start)
    end = 0
    for part in parts:
        if part.start != end:
            raise ValueError(
                f"{name}: a piece begins at {part.start}, the one before ends at {end}"
            )
        end += part.numel
    if end != shape.numel():
        raise ValueError(f"{name} has {shape.numel()} elements, its pieces have {end}")
    whole = {}
    for key in parts[0].tensors if parts else []:
        values = [part.tensors.get(key) for part in parts]
        whole[key] = _joined(f"{key} of {name}", values, parts, shape)
    return whole


def _joined(
    what: str, values: list[torch.Tensor | None], parts: list[PieceState], shape: torch.Size
) -> torch.Tensor:
    there = [value for value in values if value is not None]
    if len(there) != len(parts):
        raise ValueError(f"{what} is in {len(there)} of {len(parts)} pieces")
    if all(value.dim() == 0 for value in there):
        if any(not torch.equal(value, there[0]) for value in there):
            raise ValueError(f"{what} is {there[0]} in one piece and not in another")
        return there[0].clone()
    for value, part in zip(there, parts, strict=True):
        if value.shape != (part.numel,):
            raise ValueError(f"{what} is {tuple(value.shape)} in a piece of {part.numel} elements")
    return torch.cat(there).view(shape)
