"""What lies where in a checkpoint: the list that is written last.

    {"format": 1, "step": 100, "model": {...}, "plan": {...}, "files": {name: bytes},
     "tensors": {parameter: {"shape": [...], "keys": {"weight": ["float32", false], ...},
                             "slices": [{"file": ..., "dim": 0, "low": 0, "width": 64, ...}]}}}

A slice is one of slices.py. Every number of a parameter lies in exactly one: otherwise there is no
manifest, and so no checkpoint.

Cost: some hundred bytes for each parameter and rank that holds a part of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from labkit.compose.slices import Slice
from labkit.model.files import read_json, write_atomically

MANIFEST, FORMAT = "manifest.json", 1
Told = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One parameter of a checkpoint.

    Args:
        keys: dtype of each of its tensors, and whether it is a single number.
        slices: which numbers lie in which file.
    """

    shape: tuple[int, ...]
    keys: dict[str, tuple[torch.dtype, bool]]
    slices: list[tuple[str, Slice]]

    @property
    def everything(self) -> Slice:
        """The whole parameter, cut on the dimension that its slices are."""
        dim = self.slices[0][1].dim
        return Slice(shape=self.shape, dim=dim, width=self.shape[dim], numel=prod(self.shape))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What the manifest of a folder says."""

    folder: Path
    step: int
    model: dict[str, Any]
    plan: dict[str, Any]
    sizes: dict[str, int]  # bytes of each file
    entries: dict[str, Entry]


def step_folder(root: str | Path, step: int) -> Path:
    """Where the checkpoint after a number of steps lies."""
    return Path(root) / f"step-{step:08}"


def latest(root: str | Path) -> Path:
    """The folder of the last complete checkpoint of a run.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = sorted(path.parent for path in Path(root).glob(f"step-*/{MANIFEST}"))
    if not found:
        raise FileNotFoundError(f"no step-*/{MANIFEST} in {root}: no complete checkpoint")
    return found[-1]


def write_manifest(
    folder: Path,
    files: Sequence[Told],
    *,
    step: int,
    model: Mapping[str, Any],
    plan: Mapping[str, Any],
) -> None:
    """Write the manifest: from here on the folder is a checkpoint."""
    tensors: dict[str, Told] = {}
    for file in files:
        for name, told in file["parts"].items():
            cut = dict(told["slice"])
            entry = {"shape": cut.pop("shape"), "keys": told["keys"]}
            known = tensors.setdefault(name, {**entry, "slices": []})
            if any(known[field] != entry[field] for field in entry):
                raise ValueError(f"{name} is {entry} in {file['file']} and not in others: {known}")
            known["slices"].append({"file": file["file"], **cut})
    manifest = {
        "format": FORMAT,
        "step": step,
        "model": dict(model),
        "plan": dict(plan),
        "files": {file["file"]: file["bytes"] for file in files if file["parts"]},
        "tensors": tensors,
    }
    for name, found in _entries(manifest).items():
        _check_cover(name, found)
    write_atomically(folder / MANIFEST, json.dumps(manifest) + "\n")


def read_manifest(folder: str | Path) -> Checkpoint:
    """What a checkpoint holds; its files are there, in their sizes.

    Raises:
        FileNotFoundError, ValueError: no manifest, another format, a file that is missing or
            truncated.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"no {MANIFEST} in {folder}: no complete checkpoint")
    manifest = read_json(folder / MANIFEST)
    if (found := manifest.get("format")) != FORMAT:
        raise ValueError(f"{folder / MANIFEST} has format {found}, this program reads {FORMAT}")
    for name, size in manifest["files"].items():
        path = folder / Path(name).name  # nothing outside of the folder is read
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: {len(manifest['files'])} files are named")
        if (there := path.stat().st_size) != size:
            raise ValueError(f"{path} has {there} bytes, the manifest says {size}: it is damaged")
    return Checkpoint(
        folder=folder,
        step=manifest["step"],
        model=manifest["model"],
        plan=manifest["plan"],
        sizes=manifest["files"],
        entries=_entries(manifest),
    )


def _entries(manifest: Told) -> dict[str, Entry]:
    found = {}
    for name, told in manifest["tensors"].items():
        shape = tuple(told["shape"])
        cuts = [
            (cut["file"], Slice(shape=shape, **{k: v for k, v in cut.items() if k != "file"}))
            for cut in told["slices"]
        ]
        keys = {key: (getattr(torch, dtype), one) for key, (dtype, one) in told["keys"].items()}
        found[name] = Entry(shape=shape, keys=keys, slices=cuts)
    return found


def _check_cover(name: str, entry: Entry) -> None:
    numel, there = torch.Size(entry.shape).numel(), sum(cut.num_real for _, cut in entry.slices)
    if there != numel:
        raise ValueError(f"{name} has {numel} numbers, its slices have {there}")
