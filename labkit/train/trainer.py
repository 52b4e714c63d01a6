"""The training loop: AdamW, warm-up and cosine, clipping, accumulation, recomputation, fp16.

    loss  = sum over the batch's scored tokens of cross-entropy / number of them
    g     ← g · min(1, clip / ‖g‖)                       one norm over all parameters
    w     ← AdamW(w, g), lr(step): linear warm-up, then a cosine down to a tenth
    b     ← b + rate · sign(mean load − load)            of each expert, in a mixture that balances

A step is a function of (weights, optimizer state, step, scaler): stopping and resuming changes no
number, and neither does recomputation. In fp16 a step whose gradients overflow is skipped.
Sources: AdamW arXiv 1711.05101; cosine schedule arXiv 1608.03983; clipping arXiv 1211.5063.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from labkit.model.moe import balance_experts
from labkit.model.transformer import IGNORE, Transformer, next_token_loss
from labkit.parallel.recompute import recomputing
from labkit.train.data import Batches
from labkit.train.loss_scale import LossScaler


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What decides a run, beside the model and the text.

    Args:
        batch_size: sequences in an optimizer step.
        num_micro_batches: equal parts of a batch that are passed one after the other, to save
            memory.
        precision: "fp32"; "bf16" or "fp16" for products in that format over fp32 weights
            (autocast). fp16 needs a LossScaler.
        recompute: "none"; "full", each layer keeps its input only and runs again in backward;
            "selective", its two norms do. (The attention core, which the paper selects, is one
            fused operator here: it keeps no scores, with or without recomputation.)
        balancing_rate: how far a step moves the routers' bias, in a model that balances its
            experts.
    """

    steps: int
    batch_size: int = 8
    num_micro_batches: int = 1
    seq_len: int = 512
    lr: float = 2e-3
    min_lr_ratio: float = 0.1
    warmup_steps: int = 40
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    seed: int = 0
    precision: str = "bf16"
    recompute: str = "none"
    balancing_rate: float = 0.0

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; it must be at least 1")
        if self.num_micro_batches < 1 or self.batch_size % self.num_micro_batches:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide into {self.num_micro_batches} "
                "micro-batches"
            )
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(f"precision {self.precision!r} is not 'fp32', 'bf16' or 'fp16'")
        if self.recompute not in ("none", "selective", "full"):
            raise ValueError(f"recompute {self.recompute!r} is not 'none', 'selective' or 'full'")
        if self.balancing_rate < 0:
            raise ValueError(f"balancing_rate is {self.balancing_rate}; it must be at least 0")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did."""

    step: int
    loss: float  # nats a token, before the update
    grad_norm: float  # before clipping
    lr: float
    skipped: bool = False  # gradients overflowed in fp16: weights stayed as they were


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Rate of step 0, 1, ...: up to `lr` in warmup_steps, down a cosine to lr · min_lr_ratio."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    span = max(1, settings.steps - settings.warmup_steps)
    done = min(1.0, (step - settings.warmup_steps) / span)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * cosine)


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves norm gains and biases alone."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True
    )


def train_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
    step: int,
    settings: TrainSettings,
    scaler: LossScaler | None = None,
) -> StepResult:
    """One optimizer step on a batch of inputs and targets [B, T], in micro-batches.

    Raises:
        ValueError: if precision is "fp16" and there is no scaler.
    """
    if settings.precision == "fp16" and scaler is None:
        raise ValueError("precision 'fp16' without a scaler: gradients under 6e-8 would be 0")
    inputs, targets = batch
    optimizer.zero_grad(set_to_none=True)
    num_scored = max(1, int((targets != IGNORE).sum()))
    total = 0.0
    parts = settings.num_micro_batches
    for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
        with _autocast(settings, x.device), recomputing(_units(model, settings)):
            loss = next_token_loss(model(x), y, reduction="sum") / num_scored
        total += loss.item()
        scaled = loss if scaler is None else scaler.scaled(loss)
        scaled.backward()  # sums over micro-batches: every token weighs the same
    finite = scaler is None or scaler.unscale(model.parameters())
    norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
    lr = learning_rate(step, settings)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if finite:
        optimizer.step()
    balance_experts(model, settings.balancing_rate)
    if scaler is not None:
        scaler.update(finite)
    return StepResult(step=step, loss=total, grad_norm=norm.item(), lr=lr, skipped=not finite)


def train(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    settings: TrainSettings,
    start: int = 0,
    scaler: LossScaler | None = None,
) -> Iterator[StepResult]:
    """Run steps start, start + 1, ... and yield what each did; fp16 needs a scaler."""
    device = next(model.parameters()).device
    for step in range(start, settings.steps):
        inputs, targets = batches.batch(step)
        batch = inputs.to(device), targets.to(device)
        yield train_step(model, optimizer, batch, step, settings, scaler)


def _autocast(settings: TrainSettings, device: torch.device) -> AbstractContextManager:
    if settings.precision == "fp32":
        return nullcontext()
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float16
    return torch.autocast(device.type, dtype)


def _units(model: Transformer, settings: TrainSettings) -> list[nn.Module]:
    """The modules that run again in backward."""
    match settings.recompute:
        case "full":
            return list(model.layers)
        case "selective":
            names = ("input_layernorm", "post_attention_layernorm")
            return [layer.get_submodule(name) for layer in model.layers for name in names]
    return []
