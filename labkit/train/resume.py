"""Stop and go on: the state of a run in one safetensors file.

Weights in fp32, AdamW's two moments, the step, the losses so far. The data order needs nothing (see
`data.py`), so a run that was interrupted ends with the numbers of one that was not.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from labkit.model.files import read_safetensors, write_safetensors
from labkit.train.trainer import TrainSettings

STATE = "training_state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    settings: TrainSettings,
    losses: list[float],
) -> None:
    """Write the state after len(losses) steps, whole or not at all."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    metadata = {"settings": json.dumps(asdict(settings)), "losses": json.dumps(losses)}
    write_safetensors(folder / STATE, tensors, metadata)


def load_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.AdamW, settings: TrainSettings
) -> list[float]:
    """Fill model and optimizer in place; returns the losses of the steps done.

    Raises:
        FileNotFoundError: if there is nothing to resume.
        ValueError: if the run was started with other settings; the message names the first
            that differs.
    """
    tensors, metadata = read_safetensors(folder / STATE)
    started = json.loads(metadata["settings"])
    for name, value in asdict(settings).items():
        if started[name] != value:
            raise ValueError(
                f"{folder} was started with {name}={started[name]}, now it is {value}; "
                "resume with the same settings or choose another folder"
            )
    losses = json.loads(metadata["losses"])
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(tensors[f"model.{name}"])
        optimizer.state[parameter] = {
            "step": torch.tensor(float(len(losses))),
            **{moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS},
        }
    return losses
