"""Layouts as numbers: their products, and what does not go together.

Oracles: products by hand; split_layers of the pipeline; the checks of labkit.compose's plans, which
must refuse what a layout does. Each refusal names both numbers and a way out that is then taken.
"""

from dataclasses import replace

import pytest

from labkit.compose.plan import Plan
from labkit.cost.architecture import ARCHITECTURES, Architecture
from labkit.cost.layout import Layout, layers_of_stages
from labkit.model.config import PRESETS
from labkit.parallel.pipeline import split_layers

NANO = ARCHITECTURES["nano"]  # 4 layers, 4 heads, 2 KV heads, 176 hidden units
MIXTRAL = ARCHITECTURES["mixtral-8x7b"]  # 8 experts
DEEPSEEK = ARCHITECTURES["deepseek-v3"]


def test_the_world_is_the_product_and_a_batch_that_of_its_readers():
    layout = Layout(dp=2, pp=3, cp=5, ep=7, tp=11, micro_batch_size=13, num_micro_batches=17)
    assert layout.world_size == 2 * 3 * 5 * 7 * 11
    assert layout.replicas == 2 * 5 * 7
    assert layout.expert_replicas == 2 * 5
    assert layout.batch_size == 2 * 7 * 13 * 17


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(dp=0), "dp is 0, the least is 1"),
        (dict(num_micro_batches=-1), "num_micro_batches is -1, the least is 1"),
        (dict(chunks=0), "chunks is 0, the least is 1"),
        (dict(zero=4), r"stages \(0, 1, 2, 3\), got 4"),
        (dict(recompute="some"), "'some' is not one of"),
    ],
)
def test_values_that_do_not_exist(change, told):
    with pytest.raises(ValueError, match=told):
        Layout(**change)


REFUSED = [
    (NANO, Layout(tp=3), "4 heads over tp=3", Layout(tp=2)),
    (NANO, Layout(tp=8), "4 heads over tp=8", Layout(tp=4)),
    (replace(NANO, num_heads=6, num_kv_heads=3), Layout(tp=2), "3 KV heads over tp=2", Layout()),
    (replace(NANO, intermediate_size=175), Layout(tp=2), "175 hidden units over tp=2", Layout()),
    (NANO, Layout(pp=5), r"4 layers over 5 stages \(pp=5, 1 chunks\)", Layout(pp=4)),
    (
        NANO,
        Layout(pp=2, chunks=2, num_micro_batches=3),
        "3 micro-batches on pp=2 with 2 chunks: it needs a multiple of 2",
        Layout(pp=2, chunks=2, num_micro_batches=4),
    ),
    (NANO, Layout(chunks=2), "2 chunks on pp=1", Layout(chunks=1)),
    (NANO, Layout(ep=2), "ep=2 for a model of 0 experts", Layout(dp=2)),
    (MIXTRAL, Layout(ep=16), "8 experts over ep=16: a rank would have none", Layout(ep=8)),
    (MIXTRAL, Layout(ep=3), "8 experts over ep=3: the number must divide", Layout(ep=4)),
    (NANO, Layout(cp=5), "24 tokens over cp=5", Layout(cp=4)),
    (
        NANO,
        Layout(cp=4, tp=4, sequence_parallel=True),
        "24 tokens over cp=4 and tp=4: pad the sequence to a multiple of 16",
        Layout(cp=4, tp=4),
    ),
    (DEEPSEEK, Layout(), "latent attention, 576 numbers a token", None),
    (
        replace(MIXTRAL, num_dense_layers=1, dense_intermediate_size=1001),
        Layout(tp=2),
        "1001 hidden units of dense layers over tp=2",
        Layout(tp=1),
    ),
]


@pytest.mark.parametrize(("model", "layout", "told", "way_out"), REFUSED)
def test_what_does_not_divide_is_refused(model, layout, told, way_out):
    with pytest.raises(ValueError, match=told):
        layout.check(model, 24)
    assert layout.why_not(model, 24)
    if way_out is not None:
        way_out.check(model, 24)


def test_a_sequence_of_nothing():
    with pytest.raises(ValueError, match="0 tokens a sequence, the least is 1"):
        Layout().check(NANO, 0)


@pytest.mark.parametrize("num_layers", [1, 4, 7, 126])
def test_layers_are_dealt_as_the_pipeline_does(num_layers):
    for num_stages in range(1, min(num_layers, 9) + 1):
        parts = split_layers(num_layers, num_stages)
        assert layers_of_stages(num_layers, num_stages) == [len(part) for part in parts]
    with pytest.raises(ValueError, match=f"{num_layers} layers over {num_layers + 1} stages"):
        layers_of_stages(num_layers, num_layers + 1)


def plan_refuses(layout):
    """Whether the layout's plan cannot be made, or refuses nano or 8 tokens."""
    schedule = "interleaved" if layout.chunks > 1 else "1f1b"
    names = ("dp", "pp", "tp", "zero", "sequence_parallel", "chunks", "num_micro_batches")
    try:
        plan = Plan(schedule=schedule, **{name: getattr(layout, name) for name in names})
        plan.check(PRESETS["nano"], layout.batch_size, 8)
    except ValueError:
        return True
    return False


def test_plans_and_layouts_refuse_the_same():
    """For a model whose embedding is not tied; a plan has one more rule for those."""
    layouts = [
        Layout(pp=pp, tp=tp, chunks=chunks, num_micro_batches=m, sequence_parallel=sequence)
        for pp in (1, 2, 3, 5)
        for tp in (1, 2, 3, 4, 8)
        for chunks in (1, 2)
        for m in (1, 2, 3)
        for sequence in (False, True)
    ]
    model = Architecture.of(PRESETS["nano"])
    refused = [layout.why_not(model, 8) is not None for layout in layouts]
    assert refused == [plan_refuses(layout) for layout in layouts]
    assert 20 < sum(refused) < len(layouts) - 20  # both are there
