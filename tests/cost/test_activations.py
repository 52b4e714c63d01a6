"""Bytes kept for backward: the paper's equations, and the course's own layer as it is measured.

Oracles: the paper's parts added up by hand; SavedActivations around a real layer. All numbers are
whole, so they are compared for equality.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from labkit.cost.activations import (
    BlockShape,
    activation_table,
    block_activation_bytes,
    block_activation_terms,
    paper_block_activation_bytes,
)
from labkit.measure.memory import SavedActivations
from labkit.model.config import PRESETS
from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.transformer import Block
from labkit.parallel.recompute import recomputing

NANO = PRESETS["nano"]
CONFIGS = {
    "nano": NANO,
    "one KV head": replace(NANO, num_kv_heads=1),
    "KV heads as many as heads": replace(NANO, num_kv_heads=4),
    "wide heads": replace(NANO, head_dim=32),
    "norms of Q and K": replace(NANO, qk_norm=True),
    "other widths": replace(NANO, hidden_size=24, intermediate_size=41, head_dim=6),
}
GPT = dict(batch_size=2, seq_len=8, hidden_size=32, num_heads=4)


def shape_of(config, batch_size, seq_len):
    return BlockShape(
        batch_size=batch_size,
        seq_len=seq_len,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        qk_norm=config.qk_norm,
    )


def measured_bytes(config, batch_size, seq_len, *, autocast, recompute="none"):
    block = Block(config, 0)
    cos, sin = rope_table(torch.arange(seq_len), rope_frequencies(config), torch.float32)
    x = torch.randn(batch_size, seq_len, config.hidden_size, requires_grad=True)
    units = {
        "none": [],
        "full": [block],
        "selective": [block.input_layernorm, block.post_attention_layernorm],
    }
    products = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with SavedActivations(block) as saved, recomputing(units[recompute]), products:
        block(x, cos, sin)
    return saved.bytes


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("batch_size", "seq_len"), [(2, 32), (1, 3), (3, 41)])
def test_the_terms_are_what_a_layer_keeps(config, autocast, batch_size, seq_len):
    terms = block_activation_terms(shape_of(config, batch_size, seq_len), autocast=autocast)
    measured = measured_bytes(config, batch_size, seq_len, autocast=autocast)
    assert sum(term.own_bytes for term in terms) == measured
    assert all(term.why for term in terms)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("config", [NANO, CONFIGS["norms of Q and K"]], ids=["plain", "qk_norm"])
def test_what_recomputation_leaves(config, recompute, autocast):
    predicted = block_activation_bytes(
        shape_of(config, 2, 32), autocast=autocast, recompute=recompute
    )
    assert predicted == measured_bytes(config, 2, 32, autocast=autocast, recompute=recompute)


def test_the_parts_of_the_papers_layer_add_up_to_its_formula():
    shape = BlockShape(**GPT, intermediate_size=128, num_kv_heads=4, head_dim=8)
    terms = block_activation_terms(shape, autocast=False)
    assert sum(term.paper_bytes for term in terms) == paper_block_activation_bytes(**GPT)


def test_the_table_has_a_line_a_part_and_the_sums():
    terms = block_activation_terms(shape_of(NANO, 2, 32), autocast=False)
    lines = activation_table(terms).splitlines()
    assert len(lines) == 1 + len(terms) + 1
    assert lines[1].split("  ")[0] == "first norm"
    assert lines[-1].split()[-1] == "347,648"  # measured
    assert lines[-1].split()[1] == f"{2 * 32 * 64 * 34 + 5 * 4 * 2 * 32**2:,}"


def paper_parts(t, sequence_parallel):
    """Section 4.1 and 4.2 by hand: what each rank keeps of each part, s·b·h = 512."""
    stream, square = 2 * 8 * 32, 4 * 2 * 8 * 8
    replicated = {"norms": 4, "into QKV": 2, "into MLP": 2, "dropouts": 2}  # times s·b·h
    split = {"q, k": 4, "v": 2, "into O": 2, "into GeLU": 8, "into down": 8}
    outside = sum(replicated.values()) * stream / (t if sequence_parallel else 1)
    return outside + (sum(split.values()) * stream + (2 + 1 + 2) * square) / t


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_papers_formula_over_tensor_parallel_ranks(t, sequence_parallel):
    parallel = dict(tp=t, sequence_parallel=sequence_parallel)
    assert paper_block_activation_bytes(**GPT, **parallel) == paper_parts(t, sequence_parallel)


def test_the_papers_rows_for_a_model_of_175_billion():
    """Its section 5: 5·a·s/h is 80 for GPT-3 (a 96, s 2048, h 12288), so 70 % of the bytes."""
    gpt3 = dict(batch_size=1, seq_len=2048, hidden_size=12288, num_heads=96)
    stream = 2048 * 12288
    assert paper_block_activation_bytes(**gpt3) == stream * (34 + 80)
    assert paper_block_activation_bytes(**gpt3, recompute="selective") == stream * 34
    assert paper_block_activation_bytes(**gpt3, recompute="full") == stream * 2
    saved_share = 1 - 34 / (34 + 80)
    assert saved_share == pytest.approx(0.70, abs=0.005)
    both = dict(tp=8, sequence_parallel=True, recompute="selective")
    assert paper_block_activation_bytes(**gpt3, **both) == stream * 34 / 8


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="'some' is not one of"):
        paper_block_activation_bytes(**GPT, recompute="some")
    with pytest.raises(ValueError, match="'some' is not one of"):
        block_activation_bytes(shape_of(NANO, 1, 1), autocast=False, recompute="some")
