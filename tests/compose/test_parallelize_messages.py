"""What parallel training sends in a step, and what it refuses before anything is sent.

Promised: bytes along each axis are those of labkit.cost.sharding and labkit.cost.pipeline; the
gradients of the replicas travel once a step, whatever the number of micro-batches, up to ZeRO 1.
Oracles: those formulas, and counts by hand.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.compose import Plan, parallelize
from labkit.cost.activations import BlockShape
from labkit.cost.pipeline import loop_bytes_sent
from labkit.cost.sharding import all_reduce_traffic, tensor_parallel_traffic, zero_traffic
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from tests.compose.one_process import CLIP, LENGTH, ROWS, SGD, batch, nano

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS = 64, 176, 4, 2, 16, 2
NUMBER = 8  # bytes in float64
M = 2


def one_step(group, plans, changes):
    """Of each plan (bytes by axis, dp's all-reduces, coordinates) of one step on this rank."""
    mesh, seen = Mesh(dp=plans[0].dp, pp=plans[0].pp, tp=plans[0].tp), []
    for plan in plans:
        parallel = parallelize(nano(**changes), plan, mesh, SGD, clip_norm=CLIP)
        with CommLedger() as ledger:
            parallel.step(*batch(0))
        by_axis = {axis: ledger.bytes_sent(axis=axis) for axis in ("dp", "pp", "tp")}
        sums = [op.payload_bytes for op in ledger.ops if (op.operation, op.axis) == REDUCE_OVER_DP]
        seen.append((by_axis, sums, mesh.coordinate("pp"), {op.axis for op in ledger.ops}))
    return seen


REDUCE_OVER_DP = ("all_reduce", "dp")


def layer_numel(tp):
    matrices = 2 * WIDTH * HEADS * HEAD + 2 * WIDTH * KV_HEADS * HEAD + 3 * WIDTH * HIDDEN
    return matrices // tp + 2 * WIDTH


def stage_numels(tp):
    """Units of the two stages of two layers: each one's layer, and what is in none."""
    words = -(-259 // tp) * WIDTH
    return [[layer_numel(tp), words], [layer_numel(tp), WIDTH + words]]


def scalar(size):
    return all_reduce_traffic(8, size).bytes_sent


def expected_dp(plan, stage):
    units = stage_numels(plan.tp)[stage]
    sent = zero_traffic(
        units if plan.zero == 3 else [sum(units)],
        stage=plan.zero,
        group_size=plan.dp,
        number_bytes=NUMBER,
        num_micro_batches=plan.num_micro_batches,
    )
    numbers = 3 if plan.zero else 2  # scored tokens and loss; the norm where dp is sharded
    return sent.bytes_sent + numbers * scalar(plan.dp)


def expected_pp(plan, stage):
    rows, length = ROWS // plan.dp // M, LENGTH // (plan.tp if plan.sequence_parallel else 1)
    boundary_bytes = NUMBER * rows * length * WIDTH
    return loop_bytes_sent(plan.pp, M, boundary_bytes, stage) + 2 * scalar(plan.pp)


def expected_tp(plan):
    """Of all ranks: the layers lie on the stages, the gains travel once a step."""
    shape = BlockShape(
        batch_size=ROWS // plan.dp // M,
        seq_len=LENGTH,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD,
    )
    parts = tensor_parallel_traffic(
        shape,
        num_layers=LAYERS,
        tp=plan.tp,
        number_bytes=NUMBER,
        sequence_parallel=plan.sequence_parallel,
    )
    total = plan.dp * M * sum(part.bytes_sent for part in parts.values())
    if plan.sequence_parallel:
        gains = all_reduce_traffic(NUMBER * WIDTH * (2 * LAYERS + 1), plan.tp).bytes_sent
        total -= (plan.dp * M - (1 if plan.zero else plan.dp)) * gains
    return plan.tp * (total + plan.dp * plan.pp * scalar(plan.tp))


@pytest.mark.parametrize("sequence", [False, True])
def test_bytes_of_each_axis_are_those_of_the_formulas(sequence):
    axes = dict(dp=2, pp=2, tp=2, sequence_parallel=sequence, num_micro_batches=M)
    plans = [Plan(**axes, zero=zero) for zero in range(4)]
    ranks = run_ranks(one_step, 8, plans, {})
    for number, plan in enumerate(plans):
        seen = [rank[number] for rank in ranks]
        for by_axis, _, stage, named in seen:
            assert by_axis["dp"] == expected_dp(plan, stage)
            assert by_axis["pp"] == expected_pp(plan, stage)
            assert named == {"dp", "pp", "tp"}
        assert sum(by_axis["tp"] for by_axis, *_ in seen) == expected_tp(plan)


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_gradients_travel_once_a_step(num_micro_batches):
    """One bucket holds the model; scored tokens and loss are 8 bytes each, the norm from ZeRO 1."""
    plans = [Plan(dp=2, num_micro_batches=num_micro_batches, zero=zero) for zero in (0, 1)]
    whole = NUMBER * (2 * layer_numel(1) + 2 * 259 * WIDTH + WIDTH)
    for (_, whole_sums, *_), (by_axis, shard_sums, *_) in run_ranks(one_step, 2, plans, {}):
        assert whole_sums == [8, whole, 8]
        assert shard_sums == [8, 8, 8]
        assert by_axis["dp"] == whole + 3 * 8  # half of it out, half of it back


def test_a_tied_embedding_is_exchanged_once_a_step():
    """259 words over two ranks are 130 rows, sent by either end to the other."""
    axes = dict(pp=2, tp=2, num_micro_batches=M)
    plans = [Plan(**axes), Plan(**axes, zero=1)]
    for rank in run_ranks(one_step, 4, plans, dict(tied=True)):
        for plan, (by_axis, _, stage, _) in zip(plans, rank, strict=True):
            assert by_axis["pp"] == expected_pp(plan, stage) + NUMBER * 130 * WIDTH


def refusals(group):
    """What goes wrong while building and in steps, and the calls that were made by then."""
    mesh, told = Mesh(dp=2, tp=2), []
    built = parallelize(nano(), Plan(dp=2, tp=2, sequence_parallel=True), mesh, SGD)
    tokens, targets = batch(0)
    attempts = [
        lambda: parallelize(nano(), Plan(dp=4), mesh, SGD),
        lambda: parallelize(nano(), Plan(dp=2), mesh, SGD),
        lambda: parallelize(nano(num_heads=3, num_kv_heads=3), Plan(dp=2, tp=2), mesh, SGD),
        lambda: parallelize(nano(), Plan(dp=2, tp=2), mesh, SGD, clip_norm=0.0),
        lambda: built.step(tokens[:3], targets[:3]),
        lambda: built.step(tokens[:, :5], targets[:, :5]),
        lambda: built.step(tokens, targets[:4]),
    ]
    with CommLedger() as ledger:
        for attempt in attempts:
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                attempt()
            told.append(str(caught.value))
    loss = built.step(tokens, targets)
    return told, ledger.count(), loss.item()


def test_what_does_not_fit_is_refused_on_every_rank_before_anything_is_sent():
    ranks = run_ranks(refusals, 4)
    for told, calls, loss in ranks:
        assert calls == 0
        assert told == ranks[0][0]
        assert loss == ranks[0][2]
    for message, words in zip(
        ranks[0][0],
        [
            "the plan has dp=4, the mesh has dp=2",
            "the mesh has tp=2: a plan of 2 ranks needs Mesh(dp=2, pp=1, cp=1, ep=1, tp=1)",
            "3 heads over tp=2",
            "clip_norm is 0.0",
            "a batch of 3 over dp=2 and 1 micro-batches: use a multiple of 2 sequences",
            "5 tokens over tp=2",
            "tokens [8, 8], targets [4, 8]",
        ],
        strict=True,
    ):
        assert words in message


def own_rows_only(group):
    """Each replica brings its own rows, as a loader would."""
    parallel = parallelize(nano(), Plan(dp=2), Mesh(dp=2), SGD)
    tokens, targets = batch(0)
    mine = slice(0, 6) if dist.get_rank(group) == 0 else slice(6, 8)
    return parallel.forward_backward(tokens[mine], targets[mine])


def test_replicas_may_have_different_numbers_of_rows():
    tokens, targets = batch(0)
    expected = torch.nn.functional.cross_entropy(
        nano()(tokens).flatten(0, 1), targets.flatten()
    ).detach()
    for loss in run_ranks(own_rows_only, 2):
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
