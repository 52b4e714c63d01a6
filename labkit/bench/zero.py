"""Sharded data parallelism: our ZeRO stages beside torch's, on two gloo ranks.

    python -m labkit bench zero

Two gloo ranks of one machine train `mini` with AdamW, ours and torch's alive in the same ranks, in
interleaved pairs of whole steps; a pair's time is the slower rank's.

1. ZeroOptimizer(stage=1) over DDP with ZeroRedundancyOptimizer.
2. FullyShardedModel over fully_shard (FSDP2), a unit a layer and the rest at the root, in both.
3. Reported beside them: stage 2 over the same as 1, and the bytes that each sends by the ledger's
   convention, to which gloo adds: its reduce-scatter is an all-reduce.
"""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from labkit.bench.stats import Ratio, interleaved, row
from labkit.comm.collectives import all_reduce
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.zero import ZeroOptimizer

BATCH, SEQ_LEN, LEARNING_RATE = 4, 128, 3e-4
STEP_BOUND = 1.0
NAMES = {
    1: "ZeRO-1 / DDP + ZeroRedundancyOptimizer",
    2: "ZeRO-2 / DDP + ZeroRedundancyOptimizer",
    3: "ZeRO-3 / FSDP2",
}


def main() -> dict[str, Any]:
    """Print and return the ratios and the bytes sent by a rank in a step."""
    result: dict[str, Any] = {"model": "mini", "batch": BATCH, "seq_len": SEQ_LEN, "ranks": 2}
    for stage, name in NAMES.items():
        told = run_ranks(_beside_torch, 2, stage, timeout=600.0)
        ratio = max((each for each, _ in told), key=lambda ratio: ratio.low)
        ours, theirs = told[0][1]
        print(row(name, ratio, None if stage == 2 else STEP_BOUND))
        print(f"  sent by a rank: {ours / 1e6:.1f} MB, torch {theirs / 1e6:.1f} MB")
        result[f"stage_{stage}"] = {"ratio": vars(ratio), "bytes": ours, "peer_bytes": theirs}
    return result


def _beside_torch(group: dist.ProcessGroup, stage: int) -> tuple[Ratio, tuple[int, int]]:
    model = Transformer(PRESETS["mini"])
    initialise(model, torch.Generator().manual_seed(0))
    ours = _our_step(copy.deepcopy(model), group, stage)
    theirs = (_fsdp2_step if stage == 3 else _redundancy_step)(model, group)
    ratio = interleaved(ours, theirs, clock=partial(_slowest_s, group))
    return ratio, (_bytes(ours), _bytes(theirs))


def _our_step(module: nn.Module, group: dist.ProcessGroup, stage: int) -> Callable[[], None]:
    batch = _words(group)
    if stage == 3:
        model = FullyShardedModel(module, group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        return partial(_step, model, optimizer, batch, model.finish)
    make = partial(torch.optim.AdamW, lr=LEARNING_RATE)
    return partial(_step, module, ZeroOptimizer(module, make, group, stage=stage), batch)


def _redundancy_step(module: nn.Module, group: dist.ProcessGroup) -> Callable[[], None]:
    model = DistributedDataParallel(module, process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=group, lr=LEARNING_RATE
    )
    return partial(_step, model, optimizer, _words(group))


def _fsdp2_step(module: Transformer, group: dist.ProcessGroup) -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(group),))
    for part in [*module.layers, module]:
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    return partial(_step, module, optimizer, _words(group))


def _step(
    model: nn.Module,
    optimizer: Any,
    batch: tuple[torch.Tensor, torch.Tensor],
    finish: Callable[[], None] | None = None,
) -> None:
    next_token_loss(model(batch[0]), batch[1]).backward()
    if finish is not None:
        finish()
    optimizer.step()
    optimizer.zero_grad()


def _words(group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    words = torch.randint(0, 259, (BATCH, SEQ_LEN + 1), generator=generator)
    return words[:, :-1], words[:, 1:]  # [B, T] each


def _slowest_s(group: dist.ProcessGroup, fn: Callable[[], object]) -> float:
    dist.barrier(group)
    start = time.perf_counter()
    fn()
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    return all_reduce(took, group, dist.ReduceOp.MAX).item()


def _bytes(step: Callable[[], None]) -> int:
    with CommLedger() as ledger:
        step()
    return ledger.bytes_sent()
