"""What one rank holds in a layout: states and activations, to the byte.

Oracles: steps of labkit.compose's plans on 1, 2 and 4 gloo ranks: module_bytes, and the largest
moment of SavedActivations. All numbers are whole and compared for equality. Experts and context
parallelism have no run yet: they are compared with sums by hand.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.compose.parallelize import parallelize
from labkit.compose.plan import Plan
from labkit.cost.architecture import ARCHITECTURES, Architecture
from labkit.cost.counting import num_parameters
from labkit.cost.layout import Layout
from labkit.cost.layout_memory import (
    layout_memory,
    layout_working_memory,
    paper_layout_activation_bytes,
)
from labkit.cost.memory import FP32
from labkit.launch import run_ranks
from labkit.measure.memory import SavedActivations, module_bytes
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

UNEVEN = replace(PRESETS["nano"], num_layers=5)  # over 2 stages 3 and 2; over 4, 2, 1, 1 and 1
ROWS, SEQ_LEN = 2, 8
ADAMW = partial(torch.optim.AdamW, lr=1e-3)
PLANS = {
    1: [Plan(zero=zero) for zero in range(4)],
    2: [
        *(Plan(dp=2, zero=zero) for zero in range(4)),
        Plan(tp=2, sequence_parallel=True),
        Plan(pp=2, num_micro_batches=4),
        Plan(pp=2, schedule="interleaved", chunks=2, num_micro_batches=4, recompute="selective"),
    ],
    4: [
        *(Plan(dp=2, tp=2, zero=zero) for zero in (1, 3)),
        Plan(pp=4, num_micro_batches=6, recompute="full"),
        Plan(dp=2, pp=2, zero=1, schedule="interleaved", chunks=2, num_micro_batches=2),
        Plan(pp=2, tp=2, sequence_parallel=True, num_micro_batches=3),
        Plan(dp=2, pp=2, zero=3, num_micro_batches=2),
    ],
}


class Fullest(SavedActivations):
    """Also tells the most that was alive at once."""

    most_bytes = 0

    def _pack(self, tensor):
        held = super()._pack(tensor)
        self.most_bytes = max(self.most_bytes, self.live_bytes)
        return held


def bytes_of(tensors):
    """Of the storages, each once."""
    storages = [each.untyped_storage() for each in tensors if each is not None]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def watch_gradients(replica, seen):
    """Notes what a replica holds at the end of the last backward."""
    finish = replica.finish

    def noted(share):
        seen.append(bytes_of(p.grad for p in replica.module.parameters()))
        finish(share)

    replica.finish = noted


def step_by_plan(plan):
    """Pipeline rank, tp rank; bytes of parameters, gradients, optimizer's and activations."""
    mesh = Mesh(dp=plan.dp, pp=plan.pp, tp=plan.tp)
    parallel = parallelize(Transformer(UNEVEN), plan, mesh, ADAMW, bucket_bytes=100_000)
    rows = plan.dp * plan.num_micro_batches * ROWS
    tokens = torch.arange(rows * SEQ_LEN).remainder(259).view(rows, SEQ_LEN)
    parallel.step(tokens, tokens)
    module, seen = nn.ModuleList(parallel.stages), []
    for replica in parallel.replicas:
        watch_gradients(replica, seen)
    with Fullest(module) as saved:
        parallel.forward_backward(parallel.own_tokens(tokens), parallel.own_tokens(tokens))
    grads = [p.parameter.grad for p in parallel.pieces if p.parameter.grad is not None]
    gradient_bytes = max(sum(seen), bytes_of(grads))  # whole in backward, or a shard after it
    parallel.update()
    held = [module_bytes(module, each) for each in parallel.optimizers]
    counts = 4 * len(grads)  # AdamW's number of steps, an fp32 number a piece
    optimizer_bytes = sum(each.optimizer_bytes for each in held) - counts
    places = mesh.coordinate("pp"), mesh.coordinate("tp")
    held_bytes = held[0].parameter_bytes, gradient_bytes, optimizer_bytes, saved.most_bytes
    return *places, *held_bytes


def run_plans(group):
    return [step_by_plan(plan) for plan in PLANS[group.size()]]


def layout_of(plan):
    return Layout(
        dp=plan.dp,
        pp=plan.pp,
        tp=plan.tp,
        zero=plan.zero,
        sequence_parallel=plan.sequence_parallel,
        recompute=plan.recompute,
        micro_batch_size=ROWS,
        num_micro_batches=plan.num_micro_batches,
        chunks=plan.chunks,
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_rank_of_a_plan_holds_what_the_formula_says(world_size):
    ranks = run_ranks(run_plans, world_size)
    for number, plan in enumerate(PLANS[world_size]):
        for stage, tp_rank, *measured in (rank[number] for rank in ranks):
            told = layout_memory(
                Architecture.of(UNEVEN),
                layout_of(plan),
                seq_len=SEQ_LEN,
                recipe=FP32,
                stage=stage,
                bucket_bytes=100_000,
            )
            kept = told.activation_bytes
            if stage == plan.pp - 1:
                kept += 4  # what the loss is multiplied by, once a step
                padding = -259 % plan.tp if tp_rank == plan.tp - 1 else 0
                kept -= 4 * padding * ROWS * SEQ_LEN  # the formula's rank has words only
            states = [told.parameter_bytes, told.gradient_bytes, told.optimizer_bytes]
            assert [*states, kept] == measured, (plan, stage)


def test_context_parallel_ranks_keep_their_tokens_and_share_the_states():
    model = ARCHITECTURES["nano"]
    split = layout_memory(model, Layout(cp=4, dp=2, zero=3), seq_len=64)
    short = layout_memory(model, Layout(dp=8, zero=3), seq_len=16)
    assert split == short


def test_experts_are_spread_over_ep_and_shared_over_the_rest():
    model = ARCHITECTURES["mixtral-8x7b"]
    one = 3 * 4096 * 14_336
    dense = num_parameters(model) - 32 * 8 * one
    told = layout_memory(model, Layout(dp=2, ep=4, zero=3), seq_len=16)
    assert told.parameter_bytes == 2 * (dense // 8 + 32 * 2 * one // 2)
    alone = layout_memory(model, Layout(ep=4), seq_len=16)
    assert alone.parameter_bytes == 2 * (dense + 32 * 2 * one)


def test_units_and_buckets_are_filled_up_to_the_ranks():
    """A layer's 46,208 numbers over 3 ranks are 15,403 each; the root's 33,216 divide."""
    model = ARCHITECTURES["nano"]
    told = layout_memory(model, Layout(dp=3, zero=3), seq_len=8, recipe=FP32)
    assert told.state_bytes == 16 * (33_216 // 3 + 4 * 15_403)
    whole = layout_memory(model, Layout(dp=3, zero=1), seq_len=8, recipe=FP32, bucket_bytes=10**9)
    assert whole.gradient_bytes == 4 * 218_048  # tensors of their own, one number fewer
    assert whole.parameter_bytes == 4 * 218_049
    assert whole.optimizer_bytes == 8 * 218_049 // 3


def test_zero_has_units_and_buckets_alive_besides():
    model = ARCHITECTURES["nano"]
    layer, root = 2 * 64 + (64 + 32 + 32 + 64) * 64 + 3 * 176 * 64, 2 * 259 * 64 + 64
    told = layout_working_memory(model, Layout(dp=4, zero=3))
    assert told.gathered_bytes == 2 * (root + 2 * layer)
    assert told.sent_gradient_bytes == 2 * 2 * max(layer, root)
    second = layout_working_memory(model, Layout(dp=4, zero=2), bucket_bytes=10_000)
    assert (second.gathered_bytes, second.sent_gradient_bytes) == (0, 2 * 2 * 259 * 64)
    assert layout_working_memory(model, Layout(dp=4, zero=1)).total_bytes == 0


def test_the_papers_layer_in_a_pipeline():
    """Section 4.3: by 1F1B the first rank keeps all L layers, whatever pp; here 530B's."""
    model = ARCHITECTURES["megatron-530b"]
    stream = 2048 * 20_480
    layout = Layout(tp=8, pp=35, sequence_parallel=True, recompute="selective")
    layout = replace(layout, num_micro_batches=280)
    first = paper_layout_activation_bytes(model, layout, seq_len=2048)
    assert first == 105 * stream * 34 / 8 + 35 * stream / 8
    last = paper_layout_activation_bytes(model, layout, seq_len=2048, stage=34)
    assert last == 3 * stream * 34 / 8 + 4 * stream / 8 + 4 * 2048 * 51_200 / 8


def test_a_rank_that_is_none():
    model = ARCHITECTURES["nano"]
    with pytest.raises(ValueError, match=r"pipeline rank 2 of pp=2: ranks are 0 to 1"):
        layout_memory(model, Layout(pp=2), seq_len=8, stage=2)
    with pytest.raises(ValueError, match=r"4 heads over tp=3"):
        layout_memory(model, Layout(tp=3), seq_len=8)
