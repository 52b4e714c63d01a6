"""The whole state of a parallel model: put together from all ranks, or cut for other ones.

    full = whole_state(parallel)          # the same on every rank
    load_whole_state(full, other)         # another plan, another number of ranks

By names of the whole model: "weight", in the precision that the optimizer sees, and the optimizer's
tensors. Along dp the shards are joined, along tp the pieces of matrices, along pp the stages.

Cost: the whole state on every rank; for a large model write files instead (parallel_files.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist

from labkit.comm.split import Split
from labkit.compose.parallel_model import ParallelModel
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
        own = state_dict(replica.pieces, replica.optimizer, mesh.group("dp"))
        if parallel.plan.zero:
            shards = _told(own, mesh.group("dp"))
        else:
            shards = [replace(own, rank=0, world_size=1)]  # the pieces of each rank are all
        parts = _told(merge(shards), mesh.group("tp"))
        whole |= {name: _joined(parts, name, split) for name, split in stage.layout.items()}
    result: FullState = {}
    for part in _told(whole, mesh.group("pp")):
        for name in result.keys() & part.keys():  # a tied embedding has a copy at either end
            if not torch.equal(result[name]["weight"], part[name]["weight"]):
                raise ValueError(f"two stages have a copy of {name} and differ in it")
        result |= part
    return result


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
        replica.publish()


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
