"""Checkpoints in slices: one file a rank, a manifest last, read again by any layout.

    run/step-00000100/rank-00000-of-00008.safetensors       what this rank alone holds
    run/step-00000100/manifest.json                         written when all files are there

A folder without a manifest is no checkpoint, so a kill during a save costs that save only; a file
or a manifest (manifest.py) is written beside its place and renamed. The tensors of a file are flat,
named like "exp_avg/norm.weight".

Cost: each number is written once, by one rank. A reader takes the rows of each slice that it needs,
one piece in memory at a time. The exchanges of a save tell all ranks whether one of them failed.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from labkit.compose.manifest import MANIFEST, Checkpoint, Told, step_folder, write_manifest
from labkit.compose.slices import Slice, common, fill
from labkit.model.files import Pending, write_streamed

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some numbers of one parameter, as a rank holds them.

    Args:
        tensors: "weight" and the optimizer's: [numel] each, or a single number.
    """

    name: str
    slice: Slice
    tensors: Mapping[str, Pending]


def pending(tensors: Mapping[str, torch.Tensor]) -> dict[str, Pending]:
    """Tensors that are there already, to be written."""
    return {
        key: Pending(dtype=x.dtype, shape=tuple(x.shape), make=partial(_same, x))
        for key, x in tensors.items()
    }


def file_name(rank: int, world_size: int) -> str:
    """Of what one rank writes."""
    return f"rank-{rank:05}-of-{world_size:05}.safetensors"


def save_parts(
    root: str | Path,
    parts: Sequence[Part],
    group: dist.ProcessGroup,
    *,
    step: int,
    model: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> Path:
    """Write a checkpoint; every rank of the group calls it, and no two with the same numbers.

    Raises:
        ValueError: on every rank, if this step is there already, or parts overlap or leave a hole.
        OSError: on every rank, if one cannot write. Checkpoints before this one stay as they are.
    """
    folder, rank = step_folder(root, step), dist.get_rank(group)
    agreed(group, partial(open_folder, folder) if rank == 0 else nothing)
    path = folder / file_name(rank, dist.get_world_size(group))
    try:
        written = agreed(group, partial(write_file, path, parts))
        told: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, written, group=group)
        close = partial(write_manifest, folder, told, step=step, model=model, plan=plan)
        agreed(group, close if rank == 0 else nothing)
    except (OSError, ValueError):
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def open_folder(folder: Path) -> None:
    """Make an empty folder for a step; what an unfinished save has left there is removed.

    Raises:
        ValueError: if there is a complete checkpoint.
    """
    if (folder / MANIFEST).exists():
        raise ValueError(f"{folder} is a complete checkpoint; remove it first, or save elsewhere")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def write_file(path: Path, parts: Sequence[Part]) -> Told:
    """Write one rank's file, if it holds anything; returns what the manifest must know of it."""
    parts = [part for part in parts if part.slice.numel]
    tensors = {
        f"{key}/{part.name}": tensor for part in parts for key, tensor in part.tensors.items()
    }
    told = {
        part.name: {
            "slice": asdict(part.slice),
            "keys": {
                key: [str(tensor.dtype).removeprefix("torch."), tensor.shape == ()]
                for key, tensor in part.tensors.items()
            },
        }
        for part in parts
    }
    try:
        size = write_streamed(path, tensors, {}) if parts else 0
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return {"file": path.name, "bytes": size, "parts": told}


def read_tensor(checkpoint: Checkpoint, name: str, key: str, wanted: Slice) -> torch.Tensor:
    """Some numbers of one tensor, flat [numel], padding 0; or its single number.

    Raises:
        ValueError: if a file is damaged, or the ranks that wrote do not agree in the number.
    """
    dtype, single = checkpoint.entries[name].keys[key]
    flat = torch.zeros(() if single else wanted.numel, dtype=dtype)
    copied, seen = 0, []
    for file, there in checkpoint.entries[name].slices:
        if not single and not any(common(wanted, there)):
            continue
        path = checkpoint.folder / file
        try:
            with safe_open(path, framework="pt") as opened:
                if single:
                    seen.append(opened.get_tensor(f"{key}/{name}").clone())
                else:
                    numbers = opened.get_slice(f"{key}/{name}")
                    copied += fill(flat, wanted, there, partial(_range, numbers))
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if any(not torch.equal(number, seen[0]) for number in seen):
        raise ValueError(f"{key} of {name} is {seen[0]} in one file and not in another")
    if not single and copied != wanted.num_real:
        raise ValueError(f"{key} of {name}: {copied} of {wanted.num_real} numbers are there")
    return seen[0] if single else flat


def agreed(group: dist.ProcessGroup, do: Callable[[], Result]) -> Result:
    """What the call returns; or the first rank's mistake, raised on every rank."""
    result, failed = None, None
    try:
        result = do()
    except (OSError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else OSError
        failed = FileNotFoundError if isinstance(error, FileNotFoundError) else kind, str(error)
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, failed, group=group)
    for rank, failure in enumerate(told):
        if failure is not None:
            raise failure[0](f"rank {rank}: {failure[1]}")
    return cast(Result, result)


def nothing() -> None:
    """What a rank does that has nothing to do."""


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _range(numbers: Any, first: int, end: int) -> torch.Tensor:
    return numbers[first:end]
