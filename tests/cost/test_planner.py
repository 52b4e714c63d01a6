"""The planner against the plain product of everything: same layouts that fit, same order, same best.

Oracle: every tuple of divisors, kept by rules written out here, counted on every pipeline rank by
layout_memory and priced by step_time, without blocks, caches or pruning. Bytes are whole and seconds
come from the same function, so all is compared for equality.
"""

import random
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from labkit.cost.architecture import Architecture, architecture
from labkit.cost.candidates import Job, divisors, why_not
from labkit.cost.cluster import Cluster
from labkit.cost.fullest_rank import FullestRank
from labkit.cost.hardware import Device, LinkKind, device, link
from labkit.cost.layout import RECOMPUTE, Layout
from labkit.cost.layout_memory import layout_memory, layout_working_memory
from labkit.cost.memory import AUTOCAST, FP32, MIXED
from labkit.cost.planner import answer, best_plan, plan
from labkit.cost.step_time import step_time

DENSE = Architecture(
    num_layers=6,
    hidden_size=64,
    intermediate_size=176,
    num_heads=8,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=259,
)
MODELS = {
    "dense": DENSE,
    "seven layers, tied": replace(DENSE, num_layers=7, tied=True),
    "experts": replace(DENSE, num_experts=4, top_k=2),
    "first layers dense": replace(
        DENSE, num_experts=4, top_k=2, num_dense_layers=2, dense_intermediate_size=96
    ),
}
H100S = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))


def legal(model, seq_len, batch_size, layout):
    """What must divide what, by hand."""
    each, tp = layout, layout.tp
    layers = -(-model.num_layers // each.pp)
    split = [model.num_heads, model.intermediate_size, model.dense_intermediate_size]
    interleaved = (
        each.pp > 1 and each.num_micro_batches % each.pp == 0 and layers % each.chunks == 0
    )
    return (
        all(size % tp == 0 for size in split)
        and (model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0)
        and each.pp * each.chunks <= model.num_layers
        and (each.chunks == 1 or interleaved)
        and seq_len % each.cp == 0
        and (not each.sequence_parallel or (tp > 1 and seq_len // each.cp % tp == 0))
        and (each.ep == 1 or (model.num_experts > 0 and model.num_experts % each.ep == 0))
        and each.dp * each.ep * each.micro_batch_size * each.num_micro_batches == batch_size
        and (each.zero == 0 or each.dp * each.cp * each.ep > 1)
    )


def every_layout(model, num_devices, seq_len, batch_size):
    """The plain product."""
    sizes = divisors(num_devices)
    worlds = [axes for axes in product(sizes, repeat=5) if prod(axes) == num_devices]
    batches = divisors(batch_size)
    inner = product(batches, batches, range(1, model.num_layers + 1))
    for axes, (b, m, v) in product(worlds, list(inner)):
        for split, recompute, zero in product((False, True), RECOMPUTE, range(4)):
            layout = Layout(
                **dict(zip(("dp", "pp", "cp", "ep", "tp"), axes, strict=True)),
                **dict(micro_batch_size=b, num_micro_batches=m, chunks=v),
                **dict(sequence_parallel=split, recompute=recompute, zero=zero),
            )
            if legal(model, seq_len, batch_size, layout):
                yield layout


def most_bytes(model, layout, seq_len, recipe):
    return max(
        layout_memory(model, layout, seq_len=seq_len, recipe=recipe, stage=rank).total_bytes
        + layout_working_memory(model, layout, recipe=recipe, stage=rank).total_bytes
        for rank in range(layout.pp)
    )


def random_cluster(generator, memory_bytes):
    """Any device and links, slow and fast."""
    kinds = [
        LinkKind(name="toy", bandwidth_bytes_per_s=10 ** generator.uniform(7, 11), source="test")
        for _ in range(2)
    ]
    toy = Device(
        name="toy",
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=int(10 ** generator.uniform(10, 12)),
        peak_flops_per_s={"fp16": 10 ** generator.uniform(11, 14)},
        year=2026,
        link="toy",
        source="test",
    )
    nodes = generator.choice([1, 2])
    return Cluster(
        device=toy, devices_per_node=nodes, intra=max(kinds, key=rate), inter=min(kinds, key=rate)
    )


def rate(kind):
    return kind.bandwidth_bytes_per_s


CASES = [
    ("dense", 4, 8, 8, MIXED),
    ("dense", 8, 16, 4, MIXED),
    ("dense", 6, 12, 6, AUTOCAST),
    ("seven layers, tied", 4, 8, 6, MIXED),
    ("experts", 8, 8, 8, MIXED),
    ("first layers dense", 4, 8, 16, AUTOCAST),
]


@pytest.mark.parametrize(("name", "num_devices", "seq_len", "batch_size", "recipe"), CASES)
def test_brute_force_agrees(name, num_devices, seq_len, batch_size, recipe):
    generator = random.Random(f"{name} {num_devices} {batch_size}")
    model = MODELS[name]
    bytes_of = {
        layout: most_bytes(model, layout, seq_len, recipe)
        for layout in every_layout(model, num_devices, seq_len, batch_size)
    }
    for quantile in (0.1, 0.6):
        memory_bytes = sorted(bytes_of.values())[int(quantile * len(bytes_of))]
        cluster = random_cluster(generator, memory_bytes)
        fits = {layout for layout, size in bytes_of.items() if size <= memory_bytes}
        ranking = plan(
            model,
            num_devices=num_devices,
            cluster=cluster,
            seq_len=seq_len,
            batch_tokens=batch_size * seq_len,
            recipe=recipe,
            usable=1.0,
        )
        seconds = {each: step_time(model, each, cluster, seq_len).total_s for each in fits}
        answers = (*ranking.fitting, *ranking.needless)
        assert {e.layout: e.needed_bytes for e in answers} == {e: bytes_of[e] for e in fits}
        assert len(answers) == len(fits)
        assert all(each.feasible and each.reason.startswith("fits: ") for each in answers)
        times = [each.step.total_s for each in ranking.fitting]
        assert times == sorted(seconds[each.layout] for each in ranking.fitting)
        assert seconds[ranking.best.layout] == min(seconds.values())
        for each in ranking.needless:  # a sum in another order may differ in its last bit
            assert seconds[each.layout] >= seconds[each.instead] * (1 - 1e-12)
        assert ranking.num_layouts == len(bytes_of)
        missed = min(size for layout, size in bytes_of.items() if layout not in fits)
        assert ranking.nearest_miss.needed_bytes == missed
