"""Stop and go on: the state of a run in one safetensors file.

Weights in fp32, AdamW's two moments, the losses so far, and in fp16 the state of the loss scaler.
AdamW counts the steps that it took, which are those done less those skipped. The data order needs
nothing (see `data.py`), so a run that was interrupted ends with the numbers of one that was not.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from labkit.model.files import read_safetensors, write_safetensors
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
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in _MOMENTS:  # none yet where every step was skipped
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
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
        ValueError: if the run was started with other settings; the message names the first
            that differs. Or if the run has a scaler's state and there is no scaler, or the other
            way round.
    """
    tensors, metadata = read_safetensors(folder / STATE)
    started = json.loads(metadata["settings"])
    for name, value in asdict(settings).items():
        if started.get(name, value) != value:  # a state may be older than a setting
            raise ValueError(
                f"{folder} was started with {name}={started[name]}, now it is {value}; "
                "resume with the same settings or choose another folder"
            )
    if (scaler is not None) != ("scaler" in metadata):
        kept = "with" if "scaler" in metadata else "without"
        raise ValueError(f"{folder} was trained {kept} a loss scaler; resume it {kept} one")
    losses = json.loads(metadata["losses"])
    num_updates = len(losses)
    if scaler is not None:
        scaler.load_state(json.loads(metadata["scaler"]))
        num_updates -= scaler.num_skipped
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(tensors[f"model.{name}"])
        if num_updates:
            optimizer.state[parameter] = {
                "step": torch.tensor(float(num_updates)),
                **{moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS},
            }
    return losses
