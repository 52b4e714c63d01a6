"""Checkpoints of a module in shards, outside of a ParallelModel: the files of layout_files.py.

    save_shards(root, state_dict(zero.pieces, zero.optimizer, group), group, step=100)
    load_full_state(load_shards(latest(root)), zero.pieces, zero.optimizer)

Any number of ranks reads what another number wrote.

Cost: load_shards has the whole state on every rank.
"""

from functools import partial
from pathlib import Path

import torch.distributed as dist

from labkit.compose.layout_files import Part, pending, read_tensor, save_parts
from labkit.compose.manifest import read_manifest
from labkit.compose.slices import Slice
from labkit.parallel.sharded_state import FullState, PieceState, ShardState


def save_shards(
    root: str | Path, state: ShardState, group: dist.ProcessGroup, *, step: int
) -> Path:
    """Write the shards of all ranks into a folder of the step, which it returns.

    Raises:
        ValueError, OSError: as save_parts, on every rank.
    """
    parts = [
        Part(name=name, slice=_slice(piece), tensors=pending(piece.tensors))
        for name, piece in state.pieces.items()
    ]
    return save_parts(root, parts, group, step=step, model={}, plan={"dp": state.world_size})


def load_shards(folder: str | Path) -> FullState:
    """The whole state out of the folder of a step.

    Raises:
        FileNotFoundError, ValueError: as read_manifest.
    """
    checkpoint = read_manifest(folder)
    whole: FullState = {}
    for name, entry in checkpoint.entries.items():
        read = partial(read_tensor, checkpoint, name, wanted=entry.everything)
        whole[name] = {
            key: read(key=key) if single else read(key=key).view(entry.shape)
            for key, (_, single) in entry.keys.items()
        }
    return whole


def _slice(piece: PieceState) -> Slice:
    shape = piece.shape or (1,)
    return Slice(shape=shape, width=shape[0], start=piece.start, numel=piece.numel)
