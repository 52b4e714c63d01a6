"""Every way to put the axes together, beside one process: losses of 20 steps, and bytes by axis.

    python -m labkit bench hybrid

A row is a plan on 4 or 8 ranks. Its losses on Shakespeare, in float64 and with clipped gradients,
are those of one process (the deviation is the largest of 20 steps, relative). What all its ranks
send in a step, by the ledger, is what labkit.cost predicts, to the byte. Tokens are routed as they
are: the prediction takes the counts of the routers.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from labkit.bench.hybrid_plans import MODEL, PLANS, ROWS, SEQ_LEN, WITH_EXPERTS
from labkit.compose import Plan, make_mesh, parallelize
from labkit.compose.parallel_model import ParallelModel
from labkit.cost.architecture import Architecture
from labkit.cost.experts import ExpertShape, balanced_bytes, combine_bytes, dispatch_bytes
from labkit.cost.layout import Layout
from labkit.cost.layout_traffic import layout_traffic
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import ModelConfig
from labkit.model.corpus import load_corpus
from labkit.model.moe import MoE
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.train.data import Batches, token_stream

STEPS, CLIP_NORM, NUMBER_BYTES = 20, 1.0, 8
SGD = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
REPLICAS = ("dp", "cp", "ep")  # a joint group's name has several of them


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a plan.

    Args:
        deviation: largest relative difference of a loss from one process's.
        sent_bytes: by all ranks in the second step, as the ledger counts: over tp, over pp, and
            over the axes of replicas (gradients, keys and values, tokens of experts).
        predicted_bytes: by labkit.cost.
    """

    plan: Plan
    deviation: float
    sent_bytes: dict[str, int]
    predicted_bytes: dict[str, int]


def main() -> dict[str, Any]:
    """Print a line for each plan, and return the table by its names."""
    result: dict[str, Any] = {"steps": STEPS, "rows": {}}
    for name, plan in PLANS.items():
        row = run(plan)
        agree = row.sent_bytes == row.predicted_bytes
        print(
            f"{name:24} deviation {row.deviation:.1e}  bytes {row.sent_bytes} as predicted: {agree}"
        )
        result["rows"][name] = {
            "world_size": plan.world_size,
            "deviation": row.deviation,
            "sent_bytes": row.sent_bytes,
            "predicted_bytes": row.predicted_bytes,
        }
    return result


def run(plan: Plan, steps: int = STEPS) -> Row:
    """Train by a plan on ranks of this machine, and compare."""
    config = config_of(plan)
    ranks = run_ranks(_on_rank, plan.world_size, plan, steps, timeout=300)
    expected = serial_losses(config, steps)
    losses = ranks[0]["losses"]
    worst = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    sent = {kind: sum(rank["sent"][kind] for rank in ranks) for kind in ("tp", "pp", "replicas")}
    return Row(
        plan=plan, deviation=worst, sent_bytes=sent, predicted_bytes=_predicted(plan, config, ranks)
    )


def config_of(plan: Plan) -> ModelConfig:
    """The model of a row: with experts where the plan shares them out."""
    return WITH_EXPERTS if plan.ep > 1 else MODEL


@cache
def serial_losses(config: ModelConfig, steps: int) -> list[float]:
    """Of one process."""
    model, batches, losses = _model(config), _batches(), []
    optimizer = SGD(model.parameters())
    for step in range(steps):
        tokens, targets = batches.batch(step)
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _on_rank(group: dist.ProcessGroup, plan: Plan, steps: int) -> dict[str, Any]:
    """Losses; of the second step, bytes by kind and copies by layer and expert; the place."""
    mesh, batches = make_mesh(plan), _batches()
    parallel = parallelize(_model(config_of(plan)), plan, mesh, SGD, clip_norm=CLIP_NORM)
    losses, sent, counts = [], {}, {}
    for step in range(steps):
        layers = _routers(parallel)
        for layer in layers.values():
            _counts(layer).zero_()
        with CommLedger() as ledger:
            losses.append(parallel.step(*batches.batch(step)).item())
        if step == 1:  # in the first, ZeRO 3 learns the order of its units
            sent = _by_kind(ledger)
            counts = {name: _counts(layer).tolist() for name, layer in layers.items()}
    place = {axis: mesh.coordinate(axis) for axis in mesh.sizes}
    return {"losses": losses, "sent": sent, "counts": counts, "place": place}


def _routers(parallel: ParallelModel) -> dict[str, MoE]:
    return {
        name: layer.local
        for stage in parallel.stages
        for name, layer in stage.named_modules()
        if hasattr(layer, "local")
    }


def _counts(layer: MoE) -> torch.Tensor:
    assert layer.counts is not None, "the table's experts are balanced"
    return layer.counts


def _by_kind(ledger: CommLedger) -> dict[str, int]:
    axes = {op.axis for op in ledger.ops}
    kinds = {"tp": ("tp", "kv"), "pp": ("pp",)}
    kinds["replicas"] = tuple(axis for axis in axes if set(axis.split("+")) <= set(REPLICAS))
    return {
        kind: int(sum(ledger.bytes_sent(axis=axis) for axis in mine if axis in axes))
        for kind, mine in kinds.items()
    }


def _predicted(plan: Plan, config: ModelConfig, ranks: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes of all ranks by the formulas, with the routing that the routers counted."""
    total = dict.fromkeys(("tp", "pp", "replicas"), Fraction(0))
    for rank in ranks:
        told = layout_traffic(
            Architecture.of(config),
            layout_of(plan),
            seq_len=SEQ_LEN,
            number_bytes=NUMBER_BYTES,
            stage=rank["place"]["pp"],
            clipped=True,
        )
        total["tp"] += told["tp"].bytes_sent + told["kv"].bytes_sent
        total["pp"] += told["pp"].bytes_sent
        total["replicas"] += sum(told[axis].bytes_sent for axis in REPLICAS)
        total["replicas"] += _uneven_bytes(plan, config, rank, ranks)
    return {kind: int(value) for kind, value in total.items()}


def _uneven_bytes(
    plan: Plan, config: ModelConfig, rank: dict[str, Any], ranks: list[dict[str, Any]]
) -> Fraction:
    """Rows of experts that this rank sends as routed, less those of an even routing."""
    if not rank["counts"]:
        return Fraction(0)
    shape = ExpertShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_experts=config.num_experts,
        top_k=config.top_k,
        ep=plan.ep,
        number_bytes=NUMBER_BYTES,
    )
    sharers = [
        other
        for other in ranks
        if all(other["place"][axis] == at for axis, at in rank["place"].items() if axis != "ep")
    ]
    forwards = 2 if plan.recompute == "full" else 1
    tokens = ROWS * SEQ_LEN // (plan.dp * plan.ep * plan.cp)
    more = Fraction(0)
    for name in rank["counts"]:
        counts = [other["counts"][name] for other in sharers]
        mine = rank["place"]["ep"]
        ways = dispatch_bytes(shape, counts, mine), combine_bytes(shape, counts, mine)
        more += (1 + forwards) * (sum(ways) - 2 * balanced_bytes(shape, tokens))
    return more


def layout_of(plan: Plan) -> Layout:
    """The same for the formulas."""
    return Layout(
        dp=plan.dp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        tp=plan.tp,
        zero=plan.zero,
        sequence_parallel=plan.sequence_parallel,
        recompute=plan.recompute,
        micro_batch_size=ROWS // (plan.dp * plan.ep * plan.num_micro_batches),
        num_micro_batches=plan.num_micro_batches,
        chunks=plan.chunks,
    )


def _model(config: ModelConfig) -> Transformer:
    model = Transformer(config).double()
    initialise(model, torch.Generator().manual_seed(0))
    return model


@cache
def _batches() -> Batches:
    stream = token_stream(load_corpus().train)
    return Batches(stream=stream, batch_size=ROWS, seq_len=SEQ_LEN, seed=0)
