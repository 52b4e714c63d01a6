"""Checkpoints of a model in training: written under one plan, read under any other.

    save_parallel("runs/a", parallel, step=100)             # every rank
    step = load_parallel("runs/a", other)                   # another plan, another number of ranks

Weights are in the precision that the optimizer sees: bf16 models save their fp32 masters. The
optimizer's tensors go with their weight, cut as it is. The learning rate and the data order are not
in the files; both follow from the step.

Who writes: of ZeRO's shards every replica, of equal replicas the first; of the ranks of tp that
hold the same, the first; of the two copies of a tied embedding the first stage. Experts have the
numbers of the whole layer, so the ranks of ep write other names.

Cost: bytes of the whole state, once, over all ranks' files. Reading takes a rank's own share and
one piece of a parameter more.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm.pieces import Piece
from labkit.comm.split import Split
from labkit.compose.axes import data_axes, shard_axes
from labkit.compose.layout_files import Part, agreed, pending, read_tensor, save_parts
from labkit.compose.manifest import Checkpoint, latest, read_manifest, step_folder
from labkit.compose.norm import counted
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.slices import Slice
from labkit.compose.whole_state import buffers
from labkit.parallel.sharded_state import state_dict


def save_parallel(root: str | Path, parallel: ParallelModel, *, step: int) -> Path:
    """Write the state after a number of steps into a folder of its own, on every rank.

    Raises:
        ValueError, OSError: as in layout_files.save_parts, on every rank.
    """
    return save_parts(
        root,
        list(_own_parts(parallel)),
        _world(),
        step=step,
        model=asdict(parallel.config),
        plan=asdict(parallel.plan),
    )


def load_parallel(root: str | Path, parallel: ParallelModel, *, step: int | None = None) -> int:
    """Overwrite what this rank owns; returns the step of the checkpoint.

    Args:
        root: of the run.
        parallel: under any plan, of the same model.
        step: None takes the last that is complete.

    Raises:
        FileNotFoundError, ValueError: on every rank and before anything is changed, if there is no
            such checkpoint, it is damaged or of another model. A file that is damaged inside is
            found while it is read: then load again, from another checkpoint.
    """
    checkpoint = agreed(_world(), lambda: _open(root, parallel, step))
    agreed(_world(), lambda: _read_all(checkpoint, parallel))
    for replica in parallel.replicas:
        replica.publish()
    return checkpoint.step


def slice_of(piece: Piece, split: Split, rank: int, world_size: int) -> Slice:
    """A piece of this rank's tp shard, in the whole parameter."""
    shape = list(piece.shape)
    shape[split.dim] = split.size
    return Slice(
        shape=tuple(shape),
        dim=split.dim,
        low=split.part(rank, world_size) * split.piece,
        width=split.piece,
        start=piece.start,
        numel=piece.parameter.numel(),
    )


def check_model(checkpoint: Checkpoint, config: dict) -> None:
    """Raise a ValueError that says which size is another one."""
    for name, value in config.items():
        if (there := checkpoint.model.get(name)) != value:
            raise ValueError(
                f"{checkpoint.folder} is of another model: {name} is {there} there and {value} "
                "here; build the model with the checkpoint's sizes"
            )


def _own_parts(parallel: ParallelModel) -> Iterator[Part]:
    """What this rank writes."""
    rank, size = parallel.mesh.coordinate("tp"), parallel.plan.tp
    for stage, replica in zip(parallel.stages, parallel.replicas, strict=True):
        names = counted(stage.layout, rank, size)
        if stage.tied_weight is not None and not stage.is_first:
            names.discard("embed_tokens.weight")
        kept = state_dict(replica.pieces, replica.optimizer, parallel.mesh.group("dp"))
        for piece in replica.pieces:
            axes = shard_axes(parallel.plan, piece.name)
            # Of equal replicas the first one writes.
            if piece.name in names and (parallel.plan.zero or _is_first(parallel, axes)):
                yield Part(
                    name=piece.name,
                    slice=slice_of(piece, stage.layout[piece.name], rank, size),
                    tensors=pending(kept.pieces[piece.name].tensors),
                )

        if _is_first(parallel, ("tp", *data_axes(parallel.plan))):
            for name, buffer in buffers(stage).items():
                tensors = pending({"weight": buffer})
                yield Part(name=name, slice=_all_of(buffer), tensors=tensors)


def _is_first(parallel: ParallelModel, axes: tuple[str, ...]) -> bool:
    return not any(parallel.mesh.coordinate(axis) for axis in axes)


def _all_of(x: torch.Tensor) -> Slice:
    return Slice(shape=tuple(x.shape), dim=0, width=x.shape[0], numel=x.numel())


def _open(root: str | Path, parallel: ParallelModel, step: int | None) -> Checkpoint:
    checkpoint = read_manifest(latest(root) if step is None else step_folder(root, step))
    check_model(checkpoint, asdict(parallel.config))
    kept = [name for stage in parallel.stages for name in buffers(stage)]
    for name in [*(piece.name for piece in parallel.pieces), *kept]:
        if name not in checkpoint.entries:
            raise ValueError(f"{name} is in the model and not in {checkpoint.folder}")
    return checkpoint


@torch.no_grad()
def _read_all(checkpoint: Checkpoint, parallel: ParallelModel) -> None:
    place = parallel.mesh.coordinate("tp"), parallel.plan.tp
    for stage, replica in zip(parallel.stages, parallel.replicas, strict=True):
        for piece in replica.pieces:
            if not piece.parameter.numel():
                continue
            wanted = slice_of(piece, stage.layout[piece.name], *place)
            kept = {}
            for key in checkpoint.entries[piece.name].keys:
                value = read_tensor(checkpoint, piece.name, key, wanted)
                if key == "weight":
                    piece.parameter.copy_(value)
                else:  # torch keeps counts of steps on the CPU
                    kept[key] = value.to(piece.parameter.device) if value.dim() else value
            replica.optimizer.state.pop(piece.parameter, None)
            if kept:
                replica.optimizer.state[piece.parameter] = kept
        for name, buffer in buffers(stage).items():
            buffer.copy_(read_tensor(checkpoint, name, "weight", _all_of(buffer)).view_as(buffer))


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None, "a ParallelModel lives in a world"
    return dist.group.WORLD
