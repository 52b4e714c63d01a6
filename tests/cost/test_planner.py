"""The planner against the plain product of everything: what fits, in which order, what is best.

Oracle: every tuple of divisors, kept by rules written out here, counted on every pipeline rank by
layout_memory and priced by step_time, without blocks, caches or pruning. Bytes are whole, and the
seconds come from the same function, so all is compared for equality.
"""

import random
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from labkit.cost.architecture import Architecture, architecture
from labkit.cost.candidates import Job, divisors
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
    layers = (-(-model.num_layers // each.pp), model.num_layers // each.pp)
    split = [model.num_heads, model.intermediate_size, model.dense_intermediate_size]
    shared = any(count % each.chunks == 0 for count in layers)
    interleaved = each.pp > 1 and each.num_micro_batches % each.pp == 0 and shared
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
    ("experts", 8, 8, 4, MIXED),
    ("first layers dense", 4, 8, 8, AUTOCAST),
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
        needless = list(ranking.needless)
        answers = (*ranking.fitting, *needless)
        assert {e.layout: e.needed_bytes for e in answers} == {e: bytes_of[e] for e in fits}
        assert len(answers) == len(fits)
        assert all(each.feasible and each.reason.startswith("fits: ") for each in answers)
        times = [each.step.total_s for each in ranking.fitting]
        assert times == sorted(seconds[each.layout] for each in ranking.fitting)
        assert seconds[ranking.best.layout] == min(seconds.values())
        for each in needless:  # a sum in another order may differ in its last bit
            assert seconds[each.layout] >= seconds[each.instead] * (1 - 1e-12)
        assert ranking.num_layouts == len(bytes_of)
        missed = min(size for layout, size in bytes_of.items() if layout not in fits)
        assert ranking.nearest_miss.needed_bytes == missed


SMALL = dict(num_devices=16, cluster=H100S, seq_len=8192, batch_tokens=2**18)
MODEL = architecture("llama3-8b")


def test_the_answer_for_one_layout_is_that_of_the_ranking():
    ranking = plan(MODEL, **SMALL)
    job = ranking.job
    for each in (*ranking.fitting[:3], *ranking.fitting[-3:]):
        alone = answer(job, each.layout, cluster=H100S)
        assert (alone.feasible, alone.step, alone.reason) == (True, each.step, each.reason)
        assert alone.parts_bytes == each.parts_bytes
    for each in (*ranking.too_large[:3], *ranking.refused[:9]):
        alone = answer(job, each.layout, cluster=H100S)
        assert (alone.feasible, alone.step, alone.reason) == (False, None, each.reason)
    assert best_plan(MODEL, **SMALL) == ranking.best


def test_a_longer_pipeline_pays_for_its_bubble():
    """One micro-batch and links that cost nothing: of p ranks one works, so p times as long."""
    free = LinkKind(name="free", bandwidth_bytes_per_s=1e30, source="test")
    roomy = replace(device("h100"), memory_bytes=10**15)
    cluster = Cluster(device=roomy, intra=free, inter=free)
    job = Job(architecture=MODEL, seq_len=8192, batch_size=8)
    piped = answer(job, Layout(pp=8, micro_batch_size=8), cluster=cluster)
    spread = answer(job, Layout(dp=8, zero=1), cluster=cluster)
    assert piped.step.total_s / spread.step.total_s == pytest.approx(8, rel=0.1)
    question = dict(num_devices=8, cluster=cluster, seq_len=8192, batch_tokens=8 * 8192)
    assert best_plan(MODEL, **question).layout.pp == 1


def test_a_batch_is_whole_sequences():
    ranking = plan(MODEL, **SMALL | {"batch_tokens": 4e5})
    assert ranking.job.batch_size == 48  # 4e5 / 8192 is 48.8
    best = ranking.best
    assert ranking.tokens_per_s(best) == 48 * 8192 / best.step.total_s
    ranking = plan(MODEL, **SMALL | {"batch_tokens": 12 * 8192})
    assert any(
        e.reason == "batch of 12 sequences does not divide over dp=8" for e in ranking.refused
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (dict(batch_tokens=8191), "batch of 8191 tokens is less than one sequence of 8192"),
        (dict(num_devices=500), "500 devices do not fill nodes of 8"),
        (dict(num_devices=0), "0 devices and 8192 tokens"),
        (dict(usable=1.5), "usable share of memory is 1.5"),
        (dict(num_devices=8 * 8191), "no layout of 65528 devices divides"),
        (dict(recipe=FP32), "recipe fp32 has none"),
    ],
)
def test_a_question_without_an_answer(changed, told):
    with pytest.raises(ValueError, match=told):
        plan(MODEL, **SMALL | changed)
    with pytest.raises(ValueError, match=told):
        best_plan(MODEL, **SMALL | changed)


def test_nothing_fits_is_an_answer_and_no_best_plan():
    question = SMALL | {"batch_tokens": 16 * 8192}
    ranking = plan(architecture("llama3-405b"), **question)
    assert (ranking.best, ranking.num_fitting) == (None, 0)
    assert ranking.num_layouts == ranking.num_too_large > 0
    nearest = min(ranking.too_large, key=lambda each: each.needed_bytes)
    assert ranking.nearest_miss.needed_bytes == nearest.needed_bytes > 72e9
    assert sum(count for _, count in ranking.by_largest_part()) == ranking.num_too_large
    with pytest.raises(ValueError, match=r"none of [\d,]+ layouts fits; the nearest needs \d"):
        best_plan(architecture("llama3-405b"), **question)


def test_latent_attention_is_refused():
    with pytest.raises(ValueError, match="latent of 576 numbers"):
        plan(architecture("deepseek-v3"), **SMALL)


def test_the_fullest_rank_is_that_of_all_ranks():
    generator = random.Random(6)
    model = architecture("llama3-405b")
    table = FullestRank(model, seq_len=8192, recipe=MIXED)
    for _ in range(20):
        pp, v = generator.choice([(1, 1), (2, 3), (4, 8), (16, 4), (7, 2)])
        layout = Layout(
            pp=pp,
            chunks=v,
            num_micro_batches=pp * generator.choice([1, 2, 5]),
            **dict(tp=8, dp=generator.choice([1, 6]), zero=generator.choice(range(4))),
            recompute=generator.choice(RECOMPUTE),
            micro_batch_size=generator.choice([1, 3]),
        )
        memory, working = table.memory(layout)
        assert memory.total_bytes + working == most_bytes(model, layout, 8192, MIXED)
