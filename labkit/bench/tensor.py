"""Tensor parallelism: ours beside torch's DTensor, with and without sequence parallelism.

    python -m labkit bench tensor

Two gloo ranks of one machine train `mini`: a step (forward, loss, backward, AdamW) of ours over one
of parallelize_module's, both alive in the same ranks, in interleaved pairs; a pair's time is the
slower rank's. The peer is split as torch's tutorial on tensor parallelism splits Llama: columns and
rows in every block, the embedding by rows, the output by columns; its logits are gathered, as the
tutorial does. What `loss_parallel`, which keeps them split, changes is reported beside it.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

from labkit.bench.stats import Ratio, interleaved, row
from labkit.comm.collectives import all_reduce
from labkit.compose.tensor_parallel import tensor_parallel
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise

BATCH, SEQ_LEN, BOUND = 4, 128, 0.80
CASES = {"TP": (False, False), "TP+SP": (True, False), "TP+SP, split loss": (True, True)}


def main() -> dict[str, Any]:
    """Print and return the ratios, and the bytes that a rank sends in a step."""
    result: dict[str, Any] = {"model": "mini", "batch": BATCH, "seq_len": SEQ_LEN}
    for name, (sequence, split_loss) in CASES.items():
        ranks = run_ranks(_beside_dtensor, 2, sequence, split_loss, timeout=600.0)
        ratio = max((ratio for ratio, _ in ranks), key=lambda ratio: ratio.low)
        ours, theirs = ranks[0][1]
        print(row(f"mini step, {name} / DTensor", ratio, None if split_loss else BOUND))
        print(f"{'':<40} a rank sends {ours / 1e6:.1f} MB, DTensor {theirs / 1e6:.1f} MB")
        result[name] = vars(ratio) | {"sent_bytes": ours, "peer_sent_bytes": theirs}
    return result


class Peer(Transformer):
    """The course's model with its output projection as a module, which DTensor can hook."""

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(x)


def dtensor_parallel(
    model: Transformer, world_size: int, *, sequence: bool, split_loss: bool = False
) -> nn.Module:
    """The model split by parallelize_module, in place."""
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    stream = Shard(1) if sequence else Replicate()  # of [B, T, D]
    for layer in model.layers:
        plan: dict[str, Any] = {
            f"{part}_proj": ColwiseParallel()
            for part in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
        }
        plan |= {
            f"{part}_proj": RowwiseParallel(output_layouts=stream)
            for part in ("self_attn.o", "mlp.down")
        }
        if sequence:
            gathered: dict[str, Any] = dict(desired_input_layouts=(Replicate(),))
            plan |= {
                "input_layernorm": SequenceParallel(),
                "post_attention_layernorm": SequenceParallel(),
                "mlp": PrepareModuleInput(input_layouts=(stream,), **gathered),
                "self_attn": PrepareModuleInput(
                    input_layouts=(stream, None, None, None),
                    desired_input_layouts=(Replicate(), None, None, None),
                ),
            }
        parallelize_module(layer, mesh, plan)
    ends: dict[str, Any] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "lm_head": ColwiseParallel(
            input_layouts=stream,
            output_layouts=Shard(-1) if split_loss else Replicate(),
            use_local_output=not split_loss,
        ),
    }
    return parallelize_module(
        model, mesh, ends | ({"norm": SequenceParallel()} if sequence else {})
    )


def _beside_dtensor(
    group: dist.ProcessGroup, sequence: bool, split_loss: bool
) -> tuple[Ratio, tuple[int, int]]:
    model = Peer(PRESETS["mini"])
    initialise(model, torch.Generator().manual_seed(0))
    ours = tensor_parallel(model, group, sequence=sequence)
    theirs = dtensor_parallel(
        model, dist.get_world_size(group), sequence=sequence, split_loss=split_loss
    )
    words = torch.randint(0, 259, (BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    x, y = words[:, :-1], words[:, 1:]  # [B, T] each

    def their_backward() -> None:
        with loss_parallel() if split_loss else nullcontext():
            logits = theirs(x).flatten(0, 1)
            cross_entropy(logits, y.flatten()).backward()

    our_step = _stepper(ours, lambda: ours.loss(x, y).backward())
    their_step = _stepper(theirs, their_backward)
    sent = []
    for step in (our_step, their_step):
        with CommLedger() as ledger:
            step()
        sent.append(ledger.bytes_sent())
    return interleaved(our_step, their_step, clock=partial(_slowest_s, group)), (sent[0], sent[1])


def _stepper(model: nn.Module, backward: Callable[[], None]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _slowest_s(group: dist.ProcessGroup, fn: Callable[[], object]) -> float:
    dist.barrier(group)
    start = time.perf_counter()
    fn()
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    return all_reduce(took, group, dist.ReduceOp.MAX).item()
