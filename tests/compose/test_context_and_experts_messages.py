"""What context and expert parallelism send and hold in a step, and what a rank of them refuses.

Promised: the bytes of cp are those of labkit.cost.context, in each layer and micro-batch, and once
more forward under full recomputation; those of ep are the tokens that the one-process model's
router sends to another rank, and their counts; gradients of dense weights travel once a step over
all replicas, those of experts over fewer; a rank of cp keeps 1/cp of a row's activations.
Oracles: those formulas, the one-process model's routing, and counts by hand.
"""

import pytest
import torch

from labkit.comm.mesh import Mesh
from labkit.compose import Plan, make_mesh, parallelize
from labkit.cost.context import ContextShape, context_traffic, saved_bytes
from labkit.cost.sharding import all_reduce_traffic
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.measure.memory import SavedActivations
from labkit.model.transformer import IGNORE
from tests.compose.one_process import CLIP, LENGTH, ROWS, SGD, batch, nano

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS = 64, 176, 4, 2, 16, 2
NUMBER, M = 8, 2  # bytes in float64; micro-batches
EXPERTS = dict(num_experts=4, top_k=2)
EXPERT = 3 * WIDTH * HIDDEN  # numbers of one


def ops_of_a_step(group, plans, changes):
    """Of each plan (bytes sent, payloads in order) by axis, and the loss, on this rank."""
    seen = []
    for plan in plans:
        built = parallelize(nano(**changes), plan, make_mesh(plan), SGD, clip_norm=CLIP)
        with CommLedger() as ledger:
            built.step(*batch(0))
        payloads = {}
        for op in ledger.ops:
            payloads.setdefault((op.operation, op.axis), []).append(op.payload_bytes)
        seen.append(({axis: ledger.bytes_sent(axis=axis) for _, axis in payloads}, payloads))
    return seen


CONTEXTS = [
    Plan(dp=2, cp=2, context="ring", num_micro_batches=M),
    Plan(dp=2, cp=2, context="ring", num_micro_batches=M, recompute="full"),
    Plan(dp=2, cp=2, context="gather", num_micro_batches=M),
    Plan(dp=2, cp=2, context="heads", num_micro_batches=M),
]


def attention(cp, rows, seq_len):
    """A layer's, over some rows of a whole sequence."""
    return ContextShape(
        batch_size=rows,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        seq_len=seq_len,
        head_dim=HEAD,
        cp=cp,
        number_bytes=NUMBER,
    )


def test_bytes_of_cp_are_those_of_the_formula():
    shape = attention(2, ROWS // 2 // M, LENGTH)
    for rank in run_ranks(ops_of_a_step, 4, CONTEXTS, {}):
        for plan, (sent, payloads) in zip(CONTEXTS, rank, strict=True):
            forward, backward = context_traffic(shape, plan.context)
            forwards = 2 if plan.recompute == "full" else 1
            each = forwards * forward.bytes_sent + backward.bytes_sent
            assert sent["cp"] == LAYERS * M * each, plan
            small, weights, loss = payloads["all_reduce", "dp+cp"]  # the norm needs no sum there
            assert (small, weights, loss) == (8, NUMBER * dense_numel(num_experts=0), 8)


def dense_numel(num_experts):
    """Numbers of all weights but experts: attention and gains, router or MLP, two ends."""
    attention = 2 * WIDTH * HEADS * HEAD + 2 * WIDTH * KV_HEADS * HEAD
    mlp = WIDTH * num_experts if num_experts else EXPERT
    return LAYERS * (attention + mlp + 2 * WIDTH) + 2 * 259 * WIDTH + WIDTH


def copies_sent(plan, own):
    """Copies of a replica's rows, over all layers, that the router sends to another rank of ep."""
    model, homes = nano(**EXPERTS), []
    share = EXPERTS["num_experts"] // plan.ep
    for layer in model.layers:
        layer.mlp.register_forward_pre_hook(
            lambda moe, given: homes.append(moe.choose(given[0]).indices // share)
        )
    model(batch(0)[0].chunk(plan.dp * plan.ep)[own])
    return sum(int((home != own % plan.ep).sum()) for home in homes)


def test_bytes_of_ep_are_the_tokens_that_leave():
    """There and back, forward and backward; and 8 bytes for each expert that is elsewhere."""
    plan = Plan(dp=2, ep=2, num_micro_batches=M)
    ranks = run_ranks(ops_of_a_step, 4, [plan], EXPERTS)
    for own, [(sent, payloads)] in enumerate(ranks):
        neighbour = own ^ 1  # the other rank of two: what it sends, this one answers
        copies = 2 * (copies_sent(plan, own) + copies_sent(plan, neighbour))
        rows = copies * NUMBER * WIDTH
        counts = LAYERS * M * 8 * EXPERTS["num_experts"] // plan.ep
        norm = all_reduce_traffic(8, plan.ep).bytes_sent
        assert sent["ep"] == rows + counts + norm
        whole = NUMBER * dense_numel(EXPERTS["num_experts"])
        assert payloads["all_reduce", "dp+ep"] == [8, whole, 8]
        assert payloads["all_reduce", "dp"] == [NUMBER * LAYERS * 2 * EXPERT]


def kept_bytes(group, context):
    """By cp, what autograd keeps on this rank of two rows of 64 tokens, until backward."""
    found = {}
    for cp in (1, 2, 4):
        plan = Plan(dp=4 // cp, cp=cp, context=context)
        built = parallelize(nano(), plan, make_mesh(plan), SGD)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, 259, (2 * plan.dp, 64), generator=generator)
        with SavedActivations(built.stages[0]) as saved:
            built.step(tokens, tokens)
        found[cp] = saved.bytes
        assert saved.live_bytes == 0
    return found


@pytest.mark.parametrize("context", ["ring", "gather", "heads"])
def test_activations_are_in_proportion_to_one_over_cp(context):
    """But for the K and V of all tokens in the gather, and the copies of 2 KV heads for 4 ranks.

    Within 0.1 %: gains, masks and sums of the loss are not the tokens'.
    """
    alone = saved_bytes(attention(1, 2, 64), context)
    for found in run_ranks(kept_bytes, 4, context):
        for cp in (2, 4):
            more = LAYERS * (saved_bytes(attention(cp, 2, 64), context) - alone / cp)
            assert more == 0 or context != "ring"
            assert found[cp] == pytest.approx(found[1] / cp + more, rel=0.001), found


def refusals(group):
    """What goes wrong while building and in steps, and the calls that were made by then."""
    plan = Plan(cp=2, ep=2)
    mesh, plain, told = make_mesh(plan), Mesh(cp=2, ep=2), []
    built = parallelize(nano(**EXPERTS), plan, mesh, SGD)
    tokens, targets = batch(0)
    three = dict(num_experts=3, top_k=2)
    odd = Plan(cp=2, ep=2, context="heads")
    attempts = [
        lambda: parallelize(nano(), plan, mesh, SGD),
        lambda: parallelize(nano(**three), plan, mesh, SGD),
        lambda: parallelize(nano(**EXPERTS), plan, plain, SGD),
        lambda: parallelize(nano(**EXPERTS, num_heads=3, num_kv_heads=3), odd, mesh, SGD),
        lambda: parallelize(nano(**EXPERTS), plan, mesh, SGD, balancing_rate=-0.5),
        lambda: parallelize(nano(**EXPERTS), plan, mesh, SGD, balancing_rate=0.5),
        lambda: built.step(tokens[:3], targets[:3]),
        lambda: built.step(tokens[:, :6], targets[:, :6]),
    ]
    with CommLedger() as ledger:
        for attempt in attempts:
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                attempt()
            told.append(str(caught.value))
    built.step(tokens, targets)
    return told, ledger.count()


def test_what_does_not_fit_is_refused_on_every_rank_before_anything_is_sent():
    words = [
        "ep=2 for a model of 0 experts",
        "3 experts over ep=2: the number must divide",
        "no group over ('cp', 'ep')",
        "3 heads of a tp rank over cp=2",
        "balancing_rate is -0.5, it must be at least 0",
        "balancing_rate is 0.5, but the model does not balance its experts",
        "a batch of 3 over dp=1, ep=2 and 1 micro-batches: use a multiple of 2 sequences",
        "6 tokens over cp=2: zigzag cuts a sequence into 4 chunks",
    ]
    for told, calls in run_ranks(refusals, 4):
        assert calls == 0
        for message, part in zip(told, words, strict=True):
            assert part in message


def lost_router(group):
    """The error on this rank when a router has weights that are nan."""
    plan = Plan(dp=1, ep=2)
    built = parallelize(nano(**EXPERTS), plan, make_mesh(plan), SGD)
    if group.rank() == 1:
        router = dict(built.stages[0].named_parameters())["layers.0.mlp.router.weight"]
        torch.nn.init.constant_(router, float("nan"))
    with pytest.raises(ValueError, match="router scores are nan") as caught:
        built.step(*batch(0))
    return str(caught.value)


def test_nan_in_one_router_is_an_error_on_every_rank_of_ep():
    scored = int((batch(0)[1] != IGNORE).sum())
    assert scored < ROWS * LENGTH  # tokens that nobody scores are routed too
    told = f"router scores are nan for {ROWS // 2 * LENGTH} tokens of group rank 1"
    assert run_ranks(lost_router, 2) == [told, told]
