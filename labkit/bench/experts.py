"""Experts trained: load with and without balancing, and loss beside a dense model of equal work.

    python -m labkit bench experts

Six runs of the trainer on the same batches of Shakespeare:

| run    | model                                                                         |
| ------ | ----------------------------------------------------------------------------- |
| dense  | `nano` with an MLP k times as wide: the arithmetic of k experts for a token   |
| again  | the same from other initial weights: how far two equal models lie apart       |
| alone  | `nano-moe`, its router left alone                                             |
| loss   | `nano-moe` with the auxiliary loss                                            |
| bias   | `nano-moe` with the balancing bias, at the rate of DeepSeek-V3                |
| faster | the same at three times the rate                                              |

The trainer has no auxiliary loss. Here it enters in backward, at the output of each layer, where a
function passes values on and adds the loss's gradient (Megatron-LM does it so).

Load is counted at every step, on the batch that is trained on. A layer's imbalance is the largest
load of an expert over the mean; a step's is the mean over layers. All runs take four to five
minutes of one thread.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from labkit.cost.experts import imbalance
from labkit.model.config import PRESETS, ModelConfig
from labkit.model.corpus import Corpus, load_corpus
from labkit.model.moe import MoE, auxiliary_loss
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.train.data import Batches, token_stream
from labkit.train.trainer import TrainSettings, make_optimizer, train

MODEL, DENSE = "nano-moe", "nano"
RUNS = ("dense", "again", "alone", "loss", "bias", "faster")
RATES = {"bias": 1e-3, "faster": 3e-3}  # the first is that of arXiv 2412.19437, section 4.2
COEFFICIENT = 1e-2  # of the auxiliary loss, arXiv 2101.03961, section 2.2
EVERY = 5  # steps in one recorded point
LAST = 20  # steps whose load is recorded by expert
SETTINGS = TrainSettings(steps=200, batch_size=8, seq_len=256, lr=4e-3, precision="fp32")
HELD_OUT_ROWS = 64


def main() -> dict[str, Any]:
    """Train all, print and return what came of them."""
    text = load_corpus("shakespeare")
    config = PRESETS[MODEL]
    result: dict[str, Any] = {
        "model": MODEL,
        "num_experts": config.num_experts,
        "top_k": config.top_k,
        "steps": SETTINGS.steps,
        "tokens_per_step": SETTINGS.batch_size * SETTINGS.seq_len,
        "rates": RATES,
        "coefficient": COEFFICIENT,
        "every": EVERY,
        "last": LAST,
    }
    for name in RUNS:
        result[name] = trained(name, text, SETTINGS)
        print(told(name, result[name]))
    return result


def told(name: str, row: dict[str, Any]) -> str:
    """One line of the table."""
    load = f", imbalance {row['last_imbalance']:.2f}" if "last_imbalance" in row else ""
    return f"{name:6} held out {row['held_out_loss']:.3f} nats a token{load}"


def shape(name: str) -> ModelConfig:
    """The model of a run."""
    config = PRESETS[MODEL]
    if name in ("dense", "again"):
        return replace(PRESETS[DENSE], intermediate_size=config.top_k * config.intermediate_size)
    return replace(config, balancing=name in RATES)


def trained(name: str, text: Corpus, settings: TrainSettings) -> dict[str, Any]:
    """One run: losses, imbalance by step, load by expert at the end, the loss on unread text."""
    model = Transformer(shape(name))
    initialise(model, torch.Generator().manual_seed(settings.seed + (name == "again")))
    settings = replace(settings, balancing_rate=RATES.get(name, 0.0))
    shape_ = {"batch_size": settings.batch_size, "seq_len": settings.seq_len}
    batches = Batches(stream=token_stream(text.train), seed=settings.seed, **shape_)
    losses: list[float] = []
    counts: list[list[list[int]]] = []  # by step, layer, expert
    began = time.monotonic()
    with watched(model, coefficient=COEFFICIENT if name == "loss" else 0.0) as seen:
        for step in train(model, make_optimizer(model, settings), batches, settings):
            losses.append(step.loss)
            counts.append([each.tolist() for each in seen])
            seen.clear()
    row = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": means(losses, EVERY),
        "held_out_loss": held_out_loss(model, text, settings),
        "seconds": time.monotonic() - began,
    }
    return row | load_of(counts) if counts[0] else row


def load_of(counts: list[list[list[int]]]) -> dict[str, Any]:
    """Imbalance by step, and the copies of the last steps by layer and expert."""
    by_step = [sum(map(imbalance, layers)) / len(layers) for layers in counts]
    last = torch.tensor(counts[-LAST:]).sum(0)  # [layers, E]
    return {
        "imbalance": means([float(each) for each in by_step], EVERY),
        "last_imbalance": sum(map(float, by_step[-LAST:])) / len(by_step[-LAST:]),
        "last_counts": last.tolist(),
    }


@contextmanager
def watched(model: nn.Module, *, coefficient: float = 0.0) -> Iterator[list[torch.Tensor]]:
    """A list to which every pass through an expert layer adds its counts [E].

    Args:
        coefficient: of the auxiliary loss, whose gradient every layer's backward then adds.
    """
    seen: list[torch.Tensor] = []

    def after(moe: MoE, inputs: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        routing = moe.route(inputs[0])
        seen.append(routing.indices.flatten().bincount(minlength=len(moe.experts)))
        return _WithLoss.apply(out, coefficient * auxiliary_loss(routing)) if coefficient else out

    layers = [module for module in model.modules() if isinstance(module, MoE)]
    handles = [moe.register_forward_hook(after) for moe in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class _WithLoss(torch.autograd.Function):
    """Forward: the first input. Backward: as if the second had been added to the loss."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grads[0], grads[0].new_ones(())


@torch.no_grad()
def held_out_loss(model: Transformer, text: Corpus, settings: TrainSettings) -> float:
    """Nats a token on the same windows of unread text for every model."""
    stream = token_stream(text.held_out)
    batches = Batches(stream=stream, seed=0, batch_size=HELD_OUT_ROWS, seq_len=settings.seq_len)
    inputs, targets = batches.batch(0)
    parts = zip(inputs.split(settings.batch_size), targets.split(settings.batch_size), strict=True)
    losses = [next_token_loss(model(x), y).item() for x, y in parts]
    return sum(losses) / len(losses)


def means(values: list[float], every: int) -> list[float]:
    """Of each `every` values in a row, to four digits."""
    groups = [values[i : i + every] for i in range(0, len(values), every)]
    return [round(sum(group) / len(group), 4) for group in groups]
