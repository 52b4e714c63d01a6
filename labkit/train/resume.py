"""Stop and go on: the state of a run in one safetensors file.

Weights in fp32, AdamW's two moments, the losses so far, and in fp16 the state of the loss scaler.
AdamW counts the steps that it took, which are those done less those skipped. The data order needs
nothing (see `data.py`), so a run that was interrupted ends with the numbers of one that was not.

Many ranks save in shards (run_files.py). Either kind is read by the other, as a FullState:
parameters by their names in the whole model, each "weight" with the optimizer's tensors.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from labkit.model.files import read_safetensors, write_safetensors
from labkit.parallel.sharded_state import FullState
from labkit.train.loss_scale import LossScaler
from labkit.train.trainer import TrainSettings

STATE = "training_state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    settings: TrainSettings,
    losses: list[float],
    scaler: LossScaler | None = None,
) -> None:
    """Write the state after len(losses) steps, whole or not at all."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})  # empty where every step was skipped
        tensors |= {f"{key}.{name}": state[key] for key in _MOMENTS if key in state}
    metadata = {"settings": json.dumps(asdict(settings)), "losses": json.dumps(losses)}
    if scaler is not None:
        metadata["scaler"] = json.dumps(scaler.state())
    write_safetensors(folder / STATE, tensors, metadata)


def load_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    settings: TrainSettings,
    scaler: LossScaler | None = None,
) -> list[float]:
    """Fill model, optimizer and scaler in place; returns the losses of the steps done.

    Raises:
        FileNotFoundError: if there is nothing to resume.
        ValueError: as read_state. Or if the run has a scaler's state and there is no scaler, or the
            other way round.
    """
    _, metadata = read_safetensors(folder / STATE)
    if (scaler is not None) != ("scaler" in metadata):
        kept = "with" if "scaler" in metadata else "without"
        raise ValueError(f"{folder} was trained {kept} a loss scaler; resume it {kept} one")
    full, losses = read_state(folder, settings)
    if scaler is not None:
        scaler.load_state(json.loads(metadata["scaler"]))
    fill(full, model, optimizer)
    return losses


def read_state(
    folder: Path, settings: TrainSettings, but: Collection[str] = ()
) -> tuple[FullState, list[float]]:
    """The state of a run of one process, and its losses.

    Raises:
        FileNotFoundError: if there is nothing to resume.
        ValueError: if the run was started with other settings.
    """
    tensors, metadata = read_safetensors(folder / STATE)
    check_settings(folder, json.loads(metadata["settings"]), settings, but)
    losses = json.loads(metadata["losses"])
    full: FullState = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        full.setdefault(name, {})["weight" if kind == "model" else kind] = tensor
    scaler = json.loads(metadata.get("scaler", '{"num_skipped": 0}'))
    for kept in full.values():
        if _MOMENTS[0] in kept:
            kept["step"] = torch.tensor(float(len(losses) - scaler["num_skipped"]))
    return full, losses


def fill(full: FullState, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Overwrite a model and its optimizer's state by a whole state.

    Raises:
        ValueError: if a tensor is missing or has another shape: the state is of another model.
    """
    own = model.state_dict(keep_vars=True)
    for name, tensor in own.items():
        there = list(full[name]["weight"].shape) if name in full else "missing"
        if there != list(tensor.shape):
            raise ValueError(
                f"the state is of another model: {name} is {there} there and {list(tensor.shape)} "
                "here; resume with the --model that it was started with"
            )
    for name, tensor in own.items():
        kept = dict(full[name])
        with torch.no_grad():
            tensor.copy_(kept.pop("weight"))
        if kept:
            optimizer.state[tensor] = {
                key: value.to(tensor.device) if value.dim() else value
                for key, value in kept.items()
            }


def saved_losses(folder: Path) -> list[float]:
    """Losses of the steps that the state of one process has."""
    return json.loads(read_safetensors(folder / STATE)[1]["losses"])


def check_settings(
    folder: Path, started: Mapping, settings: TrainSettings, but: Collection[str] = ()
) -> None:
    """Raise a ValueError that names the first setting that a run was not started with."""
    for name, value in asdict(settings).items():
        if name not in but and started.get(name, value) != value:  # a state may be older
            raise ValueError(
                f"{folder} was started with {name}={started[name]}, now it is {value}; "
                "resume with the same settings or choose another folder"
            )
