"""A checkpoint for another layout, made in one process, a tensor at a time; or for none.

    reshard("runs/a/step-00000100", "runs/b", Plan(tp=4))
    export("runs/a/step-00000100", "model")                 # labkit.model.checkpoint reads it

Any layout reads any checkpoint (slices.py). What resharding adds: each rank of the new layout
finds its share in a file of its own. ZeRO's shards are even ranges of each tp shard here, where
training cuts at the ends of its buckets: both are read alike.

Cost: each number is read and written once. Memory: one piece of one tensor, and pages of the files,
which the system may drop.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch

from labkit.comm.mesh import AXES
from labkit.comm.split import Split
from labkit.compose.axes import EXPERTS
from labkit.compose.layout_files import Part, file_name, open_folder, read_tensor, write_file
from labkit.compose.manifest import Checkpoint, read_manifest, step_folder, write_manifest
from labkit.compose.plan import Plan
from labkit.compose.slices import Slice
from labkit.model.checkpoint import BIAS, write_folder
from labkit.model.config import ModelConfig, RopeScaling
from labkit.model.files import Pending
from labkit.parallel.pipeline import split_layers

Progress = Callable[[int], object]  # told of the bytes of each tensor that is written
HEADS, ROWS, COLUMNS = "kv", "rows", "columns"
CUTS = {  # how tensor parallelism cuts a module's weight; what is not here is whole on every rank
    "embed_tokens": ROWS,
    "lm_head": ROWS,
    "q_proj": ROWS,
    "k_proj": HEADS,
    "v_proj": HEADS,
    "o_proj": COLUMNS,
    "gate_proj": ROWS,
    "up_proj": ROWS,
    "down_proj": COLUMNS,
}


def reshard(
    source: str | Path, root: str | Path, plan: Plan, *, progress: Progress | None = None
) -> Path:
    """Write a checkpoint anew as the ranks of a plan would; returns its folder.

    Args:
        source: folder of one step.
        root: of the new run; the step's folder is made in it.
        plan: of the new layout.
        progress: told of the bytes of each tensor.

    Raises:
        FileNotFoundError, ValueError: if the source is damaged, the plan does not fit the model, or
            the target is there already.
        OSError: if the disk is full; the target is then no checkpoint.
    """
    checkpoint = read_manifest(source)
    config = config_of(checkpoint)
    plan.check_model(config)
    folder = step_folder(root, checkpoint.step)
    open_folder(folder)
    step, model, files = checkpoint.step, checkpoint.model, []
    try:
        for rank in range(plan.world_size):
            parts = [
                Part(name=name, slice=cut, tensors=_tensors(checkpoint, name, cut, progress))
                for name, cut in slices_of(checkpoint, config, plan, rank)
            ]
            files.append(write_file(folder / file_name(rank, plan.world_size), parts))
        write_manifest(folder, files, step=step, model=model, plan=asdict(plan))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def export(
    source: str | Path,
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
) -> None:
    """Write the weights as one plain checkpoint, as `save_checkpoint` does.

    Raises:
        FileNotFoundError, ValueError, OSError: as `reshard`.
    """
    checkpoint = read_manifest(source)
    tensors = {
        name: Pending(
            dtype=kept,
            shape=entry.shape,
            make=partial(_whole, checkpoint, name, kept, progress),
        )
        for name, entry in checkpoint.entries.items()
        for kept in [torch.float32 if name.endswith(BIAS) else dtype]
    }
    write_folder(folder, config_of(checkpoint), tensors)


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """The model's shape."""
    fields = dict(checkpoint.model)
    if fields.get("rope_scaling"):
        fields["rope_scaling"] = RopeScaling(**fields["rope_scaling"])
    try:
        return ModelConfig(**fields)
    except TypeError as error:
        raise ValueError(f"{checkpoint.folder} holds no model of this course: {error}") from None


def split_of(name: str, shape: tuple[int, ...], config: ModelConfig, tp: int) -> Split:
    """How a parameter of the whole model is cut over tp ranks: what ParallelStage.layout says."""
    cut = CUTS.get(name.split(".")[-2])
    if cut is None or (cut == COLUMNS and len(shape) == 1):  # a bias after the sum is whole
        return Split(size=shape[0])
    dim = 1 if cut == COLUMNS else 0
    return Split(
        dim=dim, size=shape[dim], parts=min(tp, config.num_kv_heads) if cut == HEADS else tp
    )


def slices_of(
    checkpoint: Checkpoint, config: ModelConfig, plan: Plan, rank: int
) -> Iterator[tuple[str, Slice]]:
    """(name, numbers) that one rank of a plan writes."""
    sizes = [getattr(plan, axis) for axis in AXES]
    dp, pp, cp, ep, tp = list(product(*map(range, sizes)))[rank]  # tp counts fastest
    parts, schedule = split_layers(config.num_layers, plan.num_stages), plan.make_schedule()
    own = {schedule.stage(pp, chunk) for chunk in range(plan.chunks)}
    for name, entry in checkpoint.entries.items():
        split = split_of(name, entry.shape, config, plan.tp)
        first = tp == 0 or split.part(tp, plan.tp) != split.part(tp - 1, plan.tp)
        replica, replicas = (dp * plan.cp + cp) * plan.ep + ep, plan.replicas
        if (expert := _expert(name)) is not None:
            first = first and expert // (config.num_experts // plan.ep) == ep
            replica, replicas = dp * plan.cp + cp, plan.dp * plan.cp
        sharded = plan.zero and not name.endswith(BIAS)
        if first and _stage(name, parts) in own and (sharded or replica == 0):
            rows, after = prod(entry.shape[: split.dim]), prod(entry.shape[split.dim + 1 :])
            numel = rows * split.piece * after
            each = -(-numel // replicas) if sharded else numel
            start = min(replica * each, numel)
            yield (
                name,
                Slice(
                    shape=entry.shape,
                    dim=split.dim,
                    low=split.part(tp, plan.tp) * split.piece,
                    width=split.piece,
                    start=start,
                    numel=min(each, numel - start),
                ),
            )


def _expert(name: str) -> int | None:
    """Number of the expert that a parameter is of."""
    _, found, rest = name.partition(EXPERTS)
    return int(rest.partition(".")[0]) if found else None


def _stage(name: str, parts: list[range]) -> int:
    kind, _, rest = name.partition(".")
    if kind == "layers":
        layer = int(rest.partition(".")[0])
        return next(stage for stage, layers in enumerate(parts) if layer in layers)
    return 0 if kind == "embed_tokens" else len(parts) - 1


def _tensors(
    checkpoint: Checkpoint, name: str, cut: Slice, progress: Progress | None
) -> dict[str, Pending]:
    return {
        key: Pending(
            dtype=dtype,
            shape=() if single else (cut.numel,),
            make=partial(_told, progress, checkpoint, name, key, cut),
        )
        for key, (dtype, single) in checkpoint.entries[name].keys.items()
    }


def _told(progress: Progress | None, *what: Any) -> torch.Tensor:
    tensor = read_tensor(*what)
    if progress is not None:
        progress(tensor.nbytes)
    return tensor


def _whole(
    checkpoint: Checkpoint, name: str, dtype: torch.dtype, progress: Progress | None
) -> torch.Tensor:
    entry = checkpoint.entries[name]
    numbers = _told(progress, checkpoint, name, "weight", entry.everything)
    return numbers.view(entry.shape).to(dtype)
