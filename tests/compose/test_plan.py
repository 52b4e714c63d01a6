"""Plans: what they refuse, with both numbers and the way out.

Promised: values that do not exist or do not go together fail when a plan is made; models and
batches that do not fit fail in `check`, whatever the order of the axes. No oracle: words and
numbers.
"""

from dataclasses import replace

import pytest

from labkit.compose import Plan
from labkit.model.config import PRESETS

FOUR = dict(num_experts=4, top_k=2)
NANO = PRESETS["nano"]  # 4 layers, 4 heads, 2 KV heads, 176 hidden units, 512 tokens


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (dict(dp=0), "dp is 0, the least is 1"),
        (dict(num_micro_batches=0), "num_micro_batches is 0, the least is 1"),
        (dict(cp=0), "cp is 0, the least is 1"),
        (dict(ep=-1), "ep is -1, the least is 1"),
        (dict(cp=2, context="bus"), "'bus' is not one of .*'ring'"),
        (dict(zero=4), r"stages \(0, 1, 2, 3\), got 4"),
        (dict(recompute="all"), "'all' is not one of .*'selective'"),
        (dict(schedule="2f2b"), "'2f2b' is not one of .*'1f1b'"),
        (dict(chunks=2, pp=2), "2 chunks a rank: it takes 1 to 1"),
        (dict(schedule="interleaved", pp=2, num_micro_batches=2), "1 chunks a rank: it takes 2"),
        (
            dict(schedule="interleaved", pp=4, chunks=2, num_micro_batches=6),
            "6 micro-batches on 4 ranks: it needs a multiple of 4.*or use one_f_one_b",
        ),
        (dict(schedule="interleaved", chunks=2), "2 chunks on pp=1.*use 1f1b"),
        (dict(schedule="zb-h1", recompute="full"), "zb-h1 with recompute 'full'.*use 1f1b"),
        (dict(schedule="zb-h1", zero=2), "zb-h1 with ZeRO 2.*use ZeRO 0 or 1, or 1f1b"),
    ],
)
def test_a_plan_that_cannot_be(fields, told):
    with pytest.raises(ValueError, match=told):
        Plan(**fields)


@pytest.mark.parametrize(
    ("fields", "config", "batch", "told"),
    [
        (dict(tp=3), {}, (4, 8), "4 heads over tp=3.*use a tp that divides 4"),
        (dict(ep=2), {}, (4, 8), "ep=2 for a model of 0 experts: use ep=1 and a larger dp"),
        (dict(ep=8), FOUR, (8, 8), "4 experts over ep=8: a rank would have none.*most is ep=4"),
        (dict(ep=3), FOUR, (6, 8), "4 experts over ep=3: the number must divide.*divisor of 4"),
        (dict(ep=2, dp=2), FOUR, (6, 8), "6 over dp=2, ep=2 and 1 .*a multiple of 4"),
        (dict(cp=2), {}, (4, 6), "6 tokens over cp=2: zigzag.*a multiple of 4"),
        (
            dict(cp=2, tp=4, sequence_parallel=True),
            {},
            (4, 12),
            "6 tokens of 12 over cp=2 over tp=4 .*a multiple of 8",
        ),
        (
            dict(cp=4, tp=2, context="heads"),
            {},
            (4, 8),
            "2 heads of a tp rank over cp=4: cp must divide; use .ring",
        ),
        (
            dict(cp=2, context="heads"),
            dict(num_heads=6, num_kv_heads=3),
            (4, 8),
            "3 KV heads of a tp rank over cp=2: one number must divide",
        ),
        (
            dict(tp=8),
            dict(num_heads=8, num_kv_heads=8, intermediate_size=100),
            (4, 8),
            "100 hidden",
        ),
        (dict(tp=2), dict(num_heads=6, num_kv_heads=3), (4, 8), "3 KV heads over tp=2"),
        (dict(pp=8), {}, (4, 8), r"4 layers over 8 stages \(pp=8, 1 chunks\)"),
        (
            dict(pp=2, chunks=3, schedule="interleaved", num_micro_batches=2),
            {},
            (4, 8),
            r"4 layers over 6 stages \(pp=2, 3 chunks\)",
        ),
        (dict(dp=2, num_micro_batches=3), {}, (8, 8), "8 over dp=2 and 3 .*a multiple of 6"),
        (dict(), {}, (0, 8), "a batch of 0 over dp=1"),
        (dict(), {}, (4, 513), "513 tokens, but max_seq_len is 512"),
        (dict(tp=4, sequence_parallel=True), {}, (4, 10), "10 tokens over tp=4.*multiple of 4"),
        (dict(pp=2, zero=2), dict(tied=True), (4, 8), "ZeRO 2 with a tied embedding on pp=2"),
        (dict(pp=2, zero=3), dict(tied=True), (4, 8), "ZeRO 3 .*use ZeRO 1, pp=1 or an untied"),
    ],
)
def test_a_model_or_batch_that_does_not_fit(fields, config, batch, told):
    plan = Plan(**fields)
    with pytest.raises(ValueError, match=told):
        plan.check(replace(NANO, **config), *batch)


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        (dict(dp=2, pp=2, tp=4, zero=3), {}),  # 2 KV heads on 4 ranks: replicas
        (dict(pp=3), {}),  # 4 layers on 3 stages: 2, 1, 1
        (dict(pp=2, zero=1), dict(tied=True)),
        (dict(zero=3), dict(tied=True)),
        (dict(tp=2, sequence_parallel=True, recompute="full"), {}),
        (dict(pp=2, schedule="zb-h1", zero=1), {}),
    ],
)
def test_what_fits(fields, config):
    Plan(**fields).check(replace(NANO, **config), 8, 16)


def test_sizes_and_schedules():
    plan = Plan(dp=2, pp=2, tp=4, schedule="interleaved", chunks=2, num_micro_batches=4)
    assert (plan.world_size, plan.num_stages) == (16, 4)
    schedule = plan.make_schedule()
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_micro_batches) == (2, 4, 4)
    for name in ("gpipe", "1f1b", "zb-h1"):
        assert Plan(pp=4, schedule=name, num_micro_batches=3).make_schedule().num_ranks == 4
