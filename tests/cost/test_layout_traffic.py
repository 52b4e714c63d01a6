"""What one rank sends in a step of a layout, by axis.

Oracle: the ledger of whole steps of labkit.compose's plans on gloo ranks, single strategies and
several at once, in fp32 and in bf16: exchanges, messages and bytes of each axis, compared for
equality. What a ring does in N-1 sends counts as one exchange. Context parallelism and experts are
compared with sums by hand.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch

from labkit.comm.mesh import Mesh
from labkit.compose.parallelize import parallelize
from labkit.compose.plan import Plan
from labkit.cost.activations import BlockShape
from labkit.cost.architecture import ARCHITECTURES, Architecture
from labkit.cost.layout import Layout
from labkit.cost.layout_traffic import layout_traffic
from labkit.cost.sharding import Traffic, tensor_parallel_traffic, zero_traffic
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

MODEL = replace(PRESETS["nano"], num_layers=5, qk_norm=True, tied=True)
ROWS, SEQ_LEN, BUCKET_BYTES = 2, 8, 100_000
SGD = partial(torch.optim.SGD, lr=0.1)
SPLIT = dict(sequence_parallel=True)
CHUNKS = dict(schedule="interleaved", chunks=2)
PLANS = {
    1: [Plan(num_micro_batches=2)],
    2: [
        *(Plan(dp=2, zero=zero, num_micro_batches=1 + zero % 2) for zero in range(4)),
        Plan(dp=2, zero=2, num_micro_batches=2),
        Plan(dp=2, zero=3, recompute="full"),
        Plan(tp=2),
        Plan(tp=2, **SPLIT, num_micro_batches=2),
        Plan(tp=2, recompute="full"),
        Plan(tp=2, **SPLIT, recompute="full"),
        Plan(tp=2, **SPLIT, recompute="selective"),
        Plan(pp=2, num_micro_batches=3),
        Plan(pp=2, **CHUNKS, num_micro_batches=2),
    ],
    4: [
        Plan(tp=4),
        Plan(tp=4, **SPLIT, num_micro_batches=2),
        Plan(dp=2, tp=2, zero=3, num_micro_batches=2),
        Plan(dp=2, tp=2, zero=1, **SPLIT),
        Plan(dp=2, pp=2, zero=1, **CHUNKS, num_micro_batches=2),
        Plan(pp=2, tp=2, **SPLIT, num_micro_batches=3),
        Plan(pp=4, num_micro_batches=2, recompute="full"),
    ],
}
LOW = [
    *(Plan(dp=2, zero=zero) for zero in range(4)),
    Plan(tp=2, **SPLIT),
    Plan(pp=2, num_micro_batches=2),
]


def sent_by_axis(plan, ledger):
    """(exchanges, messages, bytes) of each axis."""
    sizes = dict(dp=plan.dp, pp=plan.pp, tp=plan.tp, kv=plan.tp // MODEL.num_kv_heads)
    found = {}
    for axis, size in sizes.items():
        calls = Counter(op.operation for op in ledger.ops if op.axis == axis)
        sends = calls.pop("send", 0)
        calls.pop("recv", 0)
        hops = dict(all_reduce=2 * (size - 1), all_gather=size - 1)
        messages = sends + sum(hops[name] * count for name, count in calls.items())
        rings = sends if axis == "pp" else Fraction(sends, max(1, size - 1))
        exchanges = sum(calls.values()) + rings
        found[axis] = (exchanges, messages, ledger.bytes_sent(axis=axis))
    return found


def step_by_plan(plan, dtype):
    """Pipeline rank, and what is sent in the second step; in the first ZeRO 3 learns the order."""
    mesh = Mesh(dp=plan.dp, pp=plan.pp, tp=plan.tp)
    model = Transformer(MODEL).to(dtype)
    parallel = parallelize(model, plan, mesh, SGD, clip_norm=1.0, bucket_bytes=BUCKET_BYTES)
    rows = plan.dp * plan.num_micro_batches * ROWS
    tokens = torch.arange(rows * SEQ_LEN).remainder(259).view(rows, SEQ_LEN)
    parallel.step(tokens, tokens)
    with CommLedger() as ledger:
        parallel.step(tokens, tokens)
    assert {op.axis for op in ledger.ops} <= {"dp", "pp", "tp", "kv"}
    return mesh.coordinate("pp"), sent_by_axis(plan, ledger)


def run_plans(group, plans, dtype):
    return [step_by_plan(plan, dtype) for plan in plans]


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


@pytest.mark.parametrize(
    ("world_size", "plans", "dtype"),
    [
        *((world_size, plans, torch.float32) for world_size, plans in PLANS.items()),
        (2, LOW, torch.bfloat16),
    ],
    ids=["1", "2", "4", "bf16"],
)
def test_a_plan_sends_what_the_formula_says(world_size, plans, dtype):
    ranks = run_ranks(run_plans, world_size, plans, dtype)
    for number, plan in enumerate(plans):
        results = [rank[number] for rank in ranks]
        mean = sum(sent["tp"][2] for _, sent in results) / Fraction(world_size)
        for stage, measured in results:
            told = layout_traffic(
                Architecture.of(MODEL),
                layout_of(plan),
                seq_len=SEQ_LEN,
                number_bytes=dtype.itemsize,
                stage=stage,
                bucket_bytes=BUCKET_BYTES,
                clipped=True,
            )
            assert told["cp"].bytes_sent == told["ep"].bytes_sent == 0
            if plan.zero and plan.sequence_parallel:  # gains lie in one shard or in another
                measured["tp"] = (*measured["tp"][:2], mean)
            assert {axis: told_of(told[axis]) for axis in measured} == measured, (plan, stage)


def told_of(traffic):
    return traffic.num_exchanges, traffic.num_messages, traffic.bytes_sent


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_tp_is_the_formula_of_a_model_on_one_stage(tp, sequence):
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
    sizes = dict(tp=tp, number_bytes=4, sequence_parallel=sequence)
    expected = tensor_parallel_traffic(shape, num_layers=5, **sizes)
    layout = Layout(tp=tp, sequence_parallel=sequence, micro_batch_size=3)
    told = layout_traffic(Architecture.of(MODEL), layout, seq_len=SEQ_LEN, number_bytes=4)
    assert told["kv"] == expected.pop("kv")
    assert told["tp"] == sum(expected.values(), Traffic())


def test_replicas_are_dp_cp_and_ep_and_share_experts_without_ep():
    model = ARCHITECTURES["mixtral-8x7b"]
    layout = Layout(dp=2, cp=2, ep=4, zero=3)
    one = 2 * 3 * 4096 * 14_336  # experts a rank
    attention = 4096 * (2 * 4096 + 2 * 1024) + 2 * 4096 + 8 * 4096
    scalars = Fraction(2 * 15 * (8 + 4), 16)
    units = dict(stage=3, number_bytes=2)
    expected = zero_traffic([2 * 32_000 * 4096 + 4096] + [attention] * 32, group_size=16, **units)
    expected += zero_traffic([one] * 32, group_size=4, **units)
    told = layout_traffic(model, layout, seq_len=64)["dp"]
    assert told.bytes_sent == expected.bytes_sent + scalars
    assert told.num_exchanges == expected.num_exchanges + 2


@pytest.mark.parametrize(("recompute", "rounds"), [("none", 4), ("selective", 4), ("full", 5)])
def test_keys_and_values_go_round_and_come_back_with_gradients(recompute, rounds):
    layout = Layout(cp=4, tp=2, num_micro_batches=3, recompute=recompute)
    told = layout_traffic(ARCHITECTURES["llama3-8b"], layout, seq_len=64)["cp"]
    kv_bytes = 2 * 16 * 4 * 128 * 2  # of 16 tokens, 4 heads of 128, in bf16; gradients in fp32
    assert told.bytes_sent == 32 * 3 * 3 * rounds * kv_bytes
    assert told.num_messages == 32 * 3 * 3 * (rounds - 1)


@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("full", 6)])
def test_each_token_goes_to_its_experts_and_back(recompute, times):
    layout = Layout(ep=4, num_micro_batches=2, recompute=recompute)
    told = layout_traffic(ARCHITECTURES["mixtral-8x7b"], layout, seq_len=64)["ep"]
    forwards = times // 2 - 1  # each tells the counts of the eight experts first
    assert told.num_exchanges == (times + forwards) * 32 * 2
    rows_bytes, counts_bytes = times * (2 * 64 * 2 * 4096), forwards * 8 * 8
    assert told.bytes_sent == 32 * 2 * Fraction(3, 4) * (rows_bytes + counts_bytes)


def test_a_layout_that_does_not_fit():
    with pytest.raises(ValueError, match=r"4 heads over tp=3"):
        layout_traffic(ARCHITECTURES["nano"], Layout(tp=3), seq_len=8)
    with pytest.raises(ValueError, match=r"pipeline rank 4 of pp=4"):
        layout_traffic(ARCHITECTURES["nano"], Layout(pp=4), seq_len=8, stage=4)
