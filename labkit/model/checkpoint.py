"""Checkpoints as safetensors, in the folder layout of Hugging Face's Llama.

What `save_checkpoint` writes, `transformers` reads, and the other way round for Llama, Qwen3 and
Mixtral folders, sharded or not. Only safetensors are read: a pickle is refused before a byte of it
is run, and a file that an index names must lie in the folder. Writes are atomic: a temporary file,
then a rename.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from labkit.model.config import ModelConfig
from labkit.model.files import (
    Pending,
    read_json,
    read_safetensors,
    write_atomically,
    write_streamed,
)
from labkit.model.huggingface import (
    config_from_hf,
    config_to_hf,
    name_from_hf,
    name_to_hf,
)
from labkit.model.transformer import Transformer

PRETRAINED = Path(__file__).parent / "pretrained"  # nano, mini and mini-mha, trained and shipped
BIAS = ".mlp.bias"  # of a router: it moves by a thousandth a step, which bf16 would lose
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def save_checkpoint(
    folder: str | Path, model: Transformer, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json and model.safetensors, each whole or not at all."""
    tensors = {
        name: Pending(dtype=kept, shape=tuple(t.shape), make=partial(t.to, kept))
        for name, t in model.state_dict().items()
        for kept in [t.dtype if name.endswith(BIAS) else dtype]
    }
    write_folder(folder, model.config, tensors)


def write_folder(folder: str | Path, config: ModelConfig, tensors: Mapping[str, Pending]) -> None:
    """The same for tensors by their names in the model, one in memory at a time."""
    folder = Path(folder)
    described = json.dumps(config_to_hf(config), indent=2) + "\n"  # it may refuse
    folder.mkdir(parents=True, exist_ok=True)
    named = {name_to_hf(name): tensor for name, tensor in tensors.items()}
    write_streamed(folder / WEIGHTS, named, {"format": "pt"})
    write_atomically(folder / CONFIG, described)


def load_checkpoint(source: str | Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Build the model that a folder holds.

    Args:
        source: a folder, or the name of a shipped model ("nano", "mini", "mini-mha").
        dtype: of the parameters in memory, whatever the file's.

    Raises:
        FileNotFoundError: no such folder, or no weights in it.
        ValueError: a pickle, a damaged file, a path outside the folder, another architecture, or
            tensors that do not fit the config; the message names the file and the way out.
    """
    folder = PRETRAINED / source if (PRETRAINED / source).is_dir() else Path(source)
    config_path = folder / CONFIG
    if not config_path.is_file():
        shipped = ", ".join(sorted(p.name for p in PRETRAINED.glob("*/")))
        raise FileNotFoundError(f"no {config_path}; shipped models: {shipped}")
    config = config_from_hf(read_json(config_path))
    with torch.device("meta"):
        model = Transformer(config)
    wanted = {name: p.shape for name, p in model.state_dict().items()}
    tensors: dict[str, torch.Tensor] = {}
    for path in _weight_files(folder):
        tensors |= {name_from_hf(name): t for name, t in read_safetensors(path)[0].items()}
    if config.tied:
        tensors.pop("lm_head.weight", None)  # some writers store the embedding twice
    _check_names_and_shapes(folder, wanted, {name: t.shape for name, t in tensors.items()})
    cast = {n: t if n.endswith(BIAS) else t.to(dtype) for n, t in tensors.items()}
    model.load_state_dict(cast, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_()
    for layer in model.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_meta:  # it is in no file
                setattr(layer, name, torch.zeros_like(buffer, device="cpu"))
    return model


def _weight_files(folder: Path) -> list[Path]:
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise FileNotFoundError(_no_weights(folder))
        return [folder / WEIGHTS]
    names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    for name in names:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{folder / INDEX} names {name!r}, which leaves the folder")
    return [folder / name for name in names]


def _no_weights(folder: Path) -> str:
    others = sorted(
        p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    hint = f"; {others[0]} is a pickle and is not loaded" if others else ""
    return f"no {WEIGHTS} or {INDEX} in {folder}{hint}"


def _check_names_and_shapes(folder: Path, wanted: dict, found: dict) -> None:
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(
            f"{folder}: {len(missing)} tensors missing (first: {missing[:1]}), "
            f"{len(unknown)} not known to this architecture (first: {unknown[:1]})"
        )
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ValueError(
                f"{folder}: {name} has shape {tuple(found[name])}, the config says {tuple(shape)}"
            )
