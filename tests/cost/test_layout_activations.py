"""What one micro-batch keeps on a pipeline stage that is split over tp, to the byte.

Oracles: SavedActivations around labkit.compose's stages on 1, 2 and 4 gloo ranks, in fp32, in bf16
and under autocast, with and without sequence parallelism; on one rank also the formula of a block.
All numbers are whole and compared for equality. The counts of experts are sums by hand.
"""

import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.comm.mesh import Mesh
from labkit.compose.plan import Plan
from labkit.compose.stages import ParallelStage
from labkit.compose.tensor_parallel import kv_group_of
from labkit.cost.activations import BlockShape, block_activation_bytes
from labkit.cost.architecture import ARCHITECTURES, Architecture
from labkit.cost.layout import Layout
from labkit.cost.layout_activations import loss_working_bytes, part_activation_bytes
from labkit.cost.memory import AUTOCAST, FP32, MIXED
from labkit.cost.rank_parameters import stage_parts
from labkit.launch import run_ranks
from labkit.measure.memory import SavedActivations
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

NANO = PRESETS["nano"]
CONFIGS = {
    "plain": NANO,
    "norms of Q and K, tied": replace(NANO, qk_norm=True, tied=True),
    "KV heads for all": replace(NANO, num_kv_heads=4, hidden_size=24, intermediate_size=44),
}
RECIPES = {"fp32": FP32, "bf16": MIXED, "autocast": AUTOCAST}
ROWS, SEQ_LEN = 2, 8
KEPT = [
    (name, mode, sequence, recompute)
    for name in CONFIGS
    for mode in RECIPES
    for sequence in (False, True)
    for recompute in ("none", "selective", "full")
    if recompute == "none" or name == "plain"
]


def saved_bytes(config, mode, sequence, recompute, mesh, kv_group):
    """What each of three stages keeps of one micro-batch."""
    model = Transformer(config).to(torch.bfloat16 if mode == "bf16" else torch.float32)
    tokens = torch.arange(ROWS * SEQ_LEN).view(ROWS, SEQ_LEN)
    tp = mesh.size("tp")
    plan = Plan(tp=tp, sequence_parallel=sequence, recompute=recompute)
    length = SEQ_LEN // tp if sequence else SEQ_LEN
    found = []
    for layers in (range(2), range(2, 3), range(3, 4)):
        stage = ParallelStage(model, layers, mesh, kv_group, plan)
        x = torch.randn(ROWS, length, config.hidden_size, dtype=model.norm.weight.dtype)
        x = tokens if layers.start == 0 else x.requires_grad_()
        products = torch.autocast("cpu", torch.bfloat16) if mode == "autocast" else nullcontext()
        with SavedActivations(stage) as saved, products:
            y = stage(x)
            if stage.is_last:
                y = stage.loss(y, tokens)
        found.append(saved.bytes)
    return found


def run_stages(group):
    found, mesh = {}, Mesh(tp=group.size())
    for name, mode, sequence, recompute in KEPT:
        config = CONFIGS[name]
        kv_group = kv_group_of(config, mesh.group("tp"))
        found[name, mode, sequence, recompute] = saved_bytes(
            config, mode, sequence, recompute, mesh, kv_group
        )
    return found


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_stage_keeps_what_the_formula_says(tp):
    found = run_ranks(run_stages, tp)[0]
    for (name, mode, sequence, recompute), measured in found.items():
        layout = Layout(
            pp=3,
            tp=tp,
            sequence_parallel=sequence,
            recompute=recompute,
            micro_batch_size=ROWS,
        )
        architecture = Architecture.of(CONFIGS[name])
        told = [
            part_activation_bytes(
                architecture,
                layout,
                stage_parts(4, layout, stage)[0],
                seq_len=SEQ_LEN,
                recipe=RECIPES[mode],
            )
            for stage in range(3)
        ]
        assert told == measured, (name, mode, sequence, recompute)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("recipe", [FP32, AUTOCAST], ids=["fp32", "autocast"])
def test_on_one_rank_it_is_the_formula_of_a_block(recipe, recompute):
    architecture = Architecture.of(replace(NANO, qk_norm=True))
    shape = BlockShape(
        batch_size=3,
        seq_len=SEQ_LEN,
        hidden_size=64,
        intermediate_size=176,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        qk_norm=True,
    )
    block = block_activation_bytes(shape, autocast=recipe is AUTOCAST, recompute=recompute)
    layout = Layout(pp=4, micro_batch_size=3, recompute=recompute)
    (part,) = stage_parts(4, layout, 1)
    sizes = dict(seq_len=SEQ_LEN, recipe=recipe)
    assert part_activation_bytes(architecture, layout, part, **sizes) == block


class LiveLogits(TorchDispatchMode):
    """The most bytes that results of one size hold at once."""

    def __init__(self, numel):
        super().__init__()
        self.numel, self.most_bytes, self.storages = numel, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() == self.numel:
            storage = result.untyped_storage()
            self.storages[storage._cdata] = weakref.ref(storage)
        alive = [each for each in (ref() for ref in self.storages.values()) if each is not None]
        self.most_bytes = max(self.most_bytes, sum(each.nbytes() for each in alive))
        return result


def run_loss(group, mode):
    model = Transformer(NANO).to(torch.bfloat16 if mode == "bf16" else torch.float32)
    stage = ParallelStage(model, range(4), Mesh(tp=group.size()), None, Plan(tp=group.size()))
    tokens = torch.arange(ROWS * SEQ_LEN).view(ROWS, SEQ_LEN)
    products = torch.autocast("cpu", torch.bfloat16) if mode == "autocast" else nullcontext()
    words = -(-259 // group.size())
    with LiveLogits(ROWS * SEQ_LEN * words) as live, products:
        loss = stage.loss(stage(tokens), tokens)
        forward_bytes = live.most_bytes
        loss.backward()
    return forward_bytes, live.most_bytes, 4 * ROWS * SEQ_LEN * words


@pytest.mark.parametrize("mode", RECIPES)
def test_a_loss_holds_its_logits_several_times(mode):
    layout = Layout(tp=2, micro_batch_size=ROWS)
    sizes = dict(seq_len=SEQ_LEN, recipe=RECIPES[mode])
    told = loss_working_bytes(Architecture.of(NANO), layout, **sizes)
    forward_bytes, most_bytes, kept = run_ranks(run_loss, 2, mode)[0]
    assert forward_bytes == told + kept
    assert most_bytes == forward_bytes  # backward needs no more


def test_context_parallel_ranks_keep_their_own_tokens():
    model, layout = Architecture.of(NANO), Layout(micro_batch_size=2)
    (part,) = stage_parts(4, layout, 0)
    split = part_activation_bytes(model, replace(layout, cp=4), part, seq_len=64, recipe=MIXED)
    assert split == part_activation_bytes(model, layout, part, seq_len=16, recipe=MIXED)


def test_a_token_keeps_what_each_of_its_experts_does():
    model, layout = ARCHITECTURES["mixtral-8x7b"], Layout(ep=4)
    (part,) = stage_parts(32, layout, 0)
    two, three = (
        part_activation_bytes(replace(model, top_k=top_k), layout, part, seq_len=16, recipe=MIXED)
        for top_k in (2, 3)
    )
    assert three - two == 2 * 16 * 32 * (4 * 14_336 + 2 * 4096)  # hidden widths; in and out
