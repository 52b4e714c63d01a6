"""Bytes of the training state, by stage and recipe.

Oracles: figure 1 of the ZeRO paper; module_bytes around a real model and AdamW; brute force.
"""

import pytest
import torch

from labkit.cost.memory import (
    AUTOCAST,
    FP32,
    MIXED,
    RECIPES,
    ranks_that_fit,
    training_memory_bytes,
)
from labkit.measure.memory import module_bytes
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

BILLION = 10**9


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_paper(stage, gigabytes):
    memory = training_memory_bytes(7_500_000_000, stage=stage, group_size=64)
    assert round(memory.total_bytes / BILLION, 1) == gigabytes


def test_the_paper_says_16_bytes_a_parameter():
    assert MIXED.total_bytes == FP32.total_bytes == AUTOCAST.total_bytes == 16
    memory = training_memory_bytes(1000, stage=0, group_size=1)
    assert (memory.parameter_bytes, memory.gradient_bytes) == (2000, 2000)
    assert memory.optimizer_bytes == 12_000


@pytest.mark.parametrize("group_size", [1, 2, 3, 64])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_each_stage_shards_one_category_more(group_size, recipe):
    def parts(stage):
        memory = training_memory_bytes(600, stage=stage, group_size=group_size, recipe=recipe)
        return memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes

    whole = (recipe.parameter_bytes, recipe.gradient_bytes, recipe.optimizer_bytes)
    shard = -(-600 // group_size)
    for stage in range(4):
        sharded = [False] * (3 - stage) + [True] * stage
        sizes = [shard if each else 600 for each in sharded]
        assert list(parts(stage)) == [s * b for s, b in zip(sizes, whole, strict=True)]


def test_a_real_model_and_adamw_hold_what_stage_0_says():
    model = Transformer(PRESETS["nano"])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    optimizer.step()
    held = module_bytes(model, optimizer)
    num_parameters = sum(p.numel() for p in model.parameters())
    memory = training_memory_bytes(num_parameters, stage=0, group_size=1, recipe=FP32)
    assert held.parameter_bytes == memory.parameter_bytes
    assert held.gradient_bytes == memory.gradient_bytes
    step_counts = 4 * len(list(model.parameters()))  # one fp32 number a tensor
    assert held.optimizer_bytes == memory.optimizer_bytes + step_counts


def test_tensor_parallel_ranks_divide_first_and_activations_are_added():
    memory = training_memory_bytes(
        1000, stage=3, group_size=4, tp=2, recipe=FP32, activation_bytes=7
    )
    assert memory.state_bytes == 16 * 125
    assert memory.total_bytes == 16 * 125 + 7


def test_an_uneven_share_is_the_largest_ranks():
    assert training_memory_bytes(10, stage=3, group_size=4).total_bytes == 16 * 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("budget", [100, 800, 1000, 4000, 16_000])
def test_the_smallest_group_that_fits(stage, budget):
    def total(group_size):
        return training_memory_bytes(1000, stage=stage, group_size=group_size).total_bytes

    expected = next((n for n in range(1, 1001) if total(n) <= budget), None)
    assert ranks_that_fit(1000, stage=stage, budget_bytes=budget) == expected


def test_a_stage_that_is_none_and_a_group_of_nobody():
    with pytest.raises(ValueError, match=r"stages \(0, 1, 2, 3\), got 4"):
        training_memory_bytes(10, stage=4, group_size=1)
    with pytest.raises(ValueError, match="group_size 0, tp 1"):
        training_memory_bytes(10, stage=0, group_size=0)
