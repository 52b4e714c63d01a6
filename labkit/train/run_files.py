"""The files of a run: where it stands, what it was started with, which checkpoints are kept.

    OUT/training_state.safetensors   of one process (resume.py)
    OUT/run.json                     of many ranks: settings and losses, written before each save
    OUT/step-00000100/               of many ranks: their shards (labkit/compose/layout_files.py)

A run is resumed from whichever is further, on one process or many. run.json may know more losses
than the last checkpoint has steps, where a save was cut short; the rest is then forgotten, and made
again with the same numbers.
"""

import json
import shutil
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from labkit.compose.manifest import MANIFEST, latest, read_manifest
from labkit.model.files import read_json, write_atomically
from labkit.train.resume import STATE, check_settings, saved_losses
from labkit.train.trainer import TrainSettings

RUN, KEPT = "run.json", 2
OF_A_LAYOUT = ("num_micro_batches", "recompute")  # settings that another layout may change


def has_run(out: Path) -> bool:
    """Whether a run has saved anything in a folder."""
    return (out / STATE).exists() or any(out.glob(f"step-*/{MANIFEST}"))


def last_saved(out: Path) -> tuple[int, bool]:
    """Steps that the furthest save has, and whether it lies in shards.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is damaged; the message names the file.
    """
    if not has_run(out):
        raise FileNotFoundError(
            f"no file {out / STATE} and no step-*/{MANIFEST}: nothing to resume"
        )
    in_one = len(saved_losses(out)) if (out / STATE).exists() else 0
    try:
        in_shards = read_manifest(latest(out)).step
    except FileNotFoundError:
        if any(out.glob(f"step-*/{MANIFEST}")):
            raise  # a shard is missing
        in_shards = 0
    return max(in_one, in_shards), in_shards >= in_one


def write_run(out: Path, settings: TrainSettings, losses: list[float]) -> None:
    """Write settings and losses, before the checkpoint that they belong to."""
    text = json.dumps({"settings": asdict(settings), "losses": losses})
    write_atomically(out / RUN, text + "\n")


def read_run(
    out: Path, settings: TrainSettings, step: int, but: Collection[str] = OF_A_LAYOUT
) -> list[float]:
    """Losses of the steps that a checkpoint has.

    Raises:
        FileNotFoundError, ValueError: no run.json, one with fewer losses, or another setting.
    """
    if not (out / RUN).is_file():
        raise FileNotFoundError(f"no file {out / RUN}: settings and losses of the run are missing")
    told = read_json(out / RUN)
    check_settings(out, told["settings"], settings, but)
    if len(told["losses"]) < step:
        raise ValueError(
            f"{out / RUN} has {len(told['losses'])} losses, the checkpoint {step} steps: "
            "the two are of different runs"
        )
    return told["losses"][:step]


def prune(out: Path, keep: int = KEPT) -> None:
    """Remove all checkpoints but the last ones, and what saves that were cut short have left.

    The manifest goes first: what is half removed is no checkpoint.
    """
    folders = sorted(out.glob("step-*"))
    whole = [folder for folder in folders if (folder / MANIFEST).exists()]
    for folder in folders:
        if folder not in whole[-keep:]:
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
