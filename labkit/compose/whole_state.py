"""The whole state of a parallel model: put together from all ranks, or cut for other ones.

    full = whole_state(parallel)          # the same on every rank
    load_whole_state(full, other)         # another plan, another number of ranks

By names of the whole model: "weight", in the precision that the optimizer sees, and the optimizer's
tensors. Along the replicas the shards are joined, along tp the pieces of matrices, along pp the
stages, along ep the experts. A router's balancing bias is a "weight" that no optimizer sees.

Cost: the whole state on every rank; for a large model write files instead (parallel_files.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.split import Split
from labkit.compose.axes import shard_axes
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.replicas import Replica
from labkit.parallel.sharded_state import FullState, load_full_state, merge, state_dict

Told = TypeVar("Told")


def whole_state(parallel: ParallelModel) -> FullState:
    """Weights and optimizer state of the whole model, on every rank.

    Raises:
        ValueError: if two ranks that should hold the same do not, bit for bit.
    """
    mesh = parallel.mesh
    whole: FullState = {}
    for stage, replica in zip(parallel.stages, parallel.replicas, strict=True):
        parts = _told(_own(parallel, replica), mesh.group("tp"))
        whole |= {name: _joined(parts, name, split) for name, split in stage.layout.items()}
        whole |= {name: {"weight": buffer.clone()} for name, buffer in buffers(stage).items()}
    for axis in ("ep", "pp"):
        whole = _united(_told(whole, mesh.group(axis)), axis)
    return whole


def load_whole_state(full: FullState, parallel: ParallelModel) -> None:
    """Overwrite what this rank owns by its part of a whole state.

    Raises:
        ValueError: if names or shapes are others.
    """
    place = parallel.mesh.coordinate("tp"), parallel.plan.tp
    for stage, replica in zip(parallel.stages, parallel.replicas, strict=True):
        own = {
            name: {
                key: split.cut(value, *place) if value.dim() else value
                for key, value in full[name].items()
            }
            for name, split in stage.layout.items()
        }
        load_full_state(own, replica.pieces, replica.optimizer)
        for name, buffer in buffers(stage).items():
            buffer.copy_(full[name]["weight"])
        replica.publish()


def buffers(stage: nn.Module) -> dict[str, torch.Tensor]:
    """What a stage has to keep besides its parameters: the same on every rank that has it."""
    kept = stage.state_dict()
    return {name: buffer for name, buffer in stage.named_buffers() if name in kept}


def _own(parallel: ParallelModel, replica: Replica) -> FullState:
    """What this rank's replicas have together, of dense weights and of experts."""
    found: FullState = {}
    for axes in dict.fromkeys(shard_axes(parallel.plan, piece.name) for piece in replica.pieces):
        pieces = [p for p in replica.pieces if shard_axes(parallel.plan, p.name) == axes]
        group = parallel.mesh.group(*axes)
        own = state_dict(pieces, replica.optimizer, group)
        if parallel.plan.zero:
            found |= merge(_told(own, group))
        else:
            found |= merge([replace(own, rank=0, world_size=1)])  # the pieces of a rank are all
    return found


def _united(parts: Sequence[FullState], axis: str) -> FullState:
    """The states of all ranks of an axis; what two of them have must be the same."""
    result: FullState = {}
    for part in parts:
        for name in result.keys() & part.keys():  # a tied embedding has a copy at either end
            if not torch.equal(result[name]["weight"], part[name]["weight"]):
                raise ValueError(f"two ranks of {axis} have a copy of {name} and differ in it")
        result |= part
    return result


def _joined(parts: Sequence[FullState], name: str, split: Split) -> dict[str, torch.Tensor]:
    """One parameter's tensors out of those of all ranks of tp."""
    return {
        key: split.join([part[name][key] for part in parts]) if value.dim() else value
        for key, value in parts[0][name].items()
    }


def _told(own: Told, group: dist.ProcessGroup) -> list[Told]:
    """What each rank of a group has, in rank order."""
    told = [own] * dist.get_world_size(group)
    dist.all_gather_object(told, own, group=group)
    return told
