"""What sharding sends: the formulas against the ledgers of the real strategies, and their replay.

Oracles: a ledger around a step of data parallelism, ZeRO 1 to 3, tensor and sequence parallelism;
the logs of such a step replayed in virtual time. Bytes and counts are compared for equality,
virtual times to 1e-9 relative: sums of a few hundred floats.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist

from labkit.comm.buckets import assign_buckets
from labkit.comm.collectives import all_reduce
from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter
from labkit.comm.mesh import Mesh
from labkit.compose.tensor_parallel import tensor_parallel
from labkit.cost.activations import BlockShape
from labkit.cost.sharding import Traffic, hsdp_traffic, tensor_parallel_traffic, zero_traffic
from labkit.launch import run_ranks
from labkit.measure.events import Launch, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, next_token_loss
from labkit.parallel.data import NaiveDataParallel
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.zero import ZeroOptimizer

NANO = PRESETS["nano"]
BUCKET_BYTES = 100_000
SGD = partial(torch.optim.SGD, lr=0.1)
TOKENS = torch.arange(2 * 9).view(2, 9)  # [B, T+1]
ALPHA_S, BETA_S = 1e-3, 1e-8


def one_backward(model):
    next_token_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()


def unit_numels(stage):
    """Elements of the buckets, or of the units: each layer, and the root."""
    model = Transformer(NANO)
    if stage == 0:
        return [p.numel() for p in model.parameters()]
    if stage == 3:
        layers = [sum(p.numel() for p in layer.parameters()) for layer in model.layers]
        return [sum(p.numel() for p in model.parameters()) - sum(layers), *layers]
    parameters = list(model.parameters())
    buckets = assign_buckets(parameters, BUCKET_BYTES, reverse=True)
    return [sum(parameters[i].numel() for i in bucket) for bucket in buckets]


def step_of(stage, group):
    """A function that runs one step of some backwards."""
    model = Transformer(NANO)
    if stage in (1, 2):
        zero = ZeroOptimizer(model, SGD, group, stage=stage, bucket_bytes=BUCKET_BYTES)
        return model, zero.step
    wrapped = NaiveDataParallel(model, group) if stage == 0 else FullyShardedModel(model, group)
    return wrapped, wrapped.finish


def run_zero(group, stage):
    """Steps of one micro-batch and of two."""
    model, finish = step_of(stage, group)
    if stage == 3:
        one_backward(model)  # the first forward learns the order
        finish()
    steps = []
    for num_micro_batches in (1, 2):
        with EventLog() as log, CommLedger() as ledger:
            for _ in range(num_micro_batches):
                one_backward(model)
            finish()
        counts = ledger.count(), ledger.count("send"), ledger.bytes_sent()
        steps.append((*counts, transfers(log)))
    return steps


def transfers(log):
    """The log without arithmetic: what communication costs alone."""
    return [event for event in log.events if isinstance(event, Launch | Wait)]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_zero_sends_what_the_formula_says(world_size, stage):
    ranks = run_ranks(run_zero, world_size, stage)
    for step, num_micro_batches in enumerate((1, 2)):
        traffic = zero_traffic(
            unit_numels(stage),
            stage=stage,
            group_size=world_size,
            number_bytes=4,
            num_micro_batches=num_micro_batches,
        )
        for calls, sends, sent, _ in (steps[step] for steps in ranks):
            assert sent == traffic.bytes_sent
            if stage == 0:
                assert calls == traffic.num_exchanges
            else:
                assert sends == traffic.num_messages
                assert calls == 2 * sends  # each with a recv
        links = Fabric(alpha=ALPHA_S, beta=BETA_S, flops=1.0)
        timeline = replay([steps[step][-1] for steps in ranks], links)
        expected = traffic.time_s(ALPHA_S, BETA_S)
        assert timeline.step_s == pytest.approx(expected, rel=1e-9)


def test_the_papers_two_and_three_times_the_parameters():
    """Section 7: as many bytes as data parallelism up to stage 2, half as many again in stage 3."""
    sent = [
        zero_traffic([4096] * 6, stage=stage, group_size=8, number_bytes=2).bytes_sent
        for stage in range(4)
    ]
    parameters = 6 * 4096 * 2
    assert sent == [2 * parameters * 7 / 8] * 3 + [3 * parameters * 7 / 8]


def run_tensor_parallel(group, config, sequence, dtype):
    mesh = Mesh(tp=dist.get_world_size(group))
    model = tensor_parallel(Transformer(config).to(dtype), mesh.group("tp"), sequence=sequence)
    with EventLog() as log, CommLedger() as ledger:
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).backward()
    kinds = {
        name: (ledger.count(name, "tp"), ledger.bytes_sent(name, "tp"))
        for name in ("all_reduce", "send", "all_gather")
    }
    kinds["kv"] = (ledger.count(axis="kv"), ledger.bytes_sent(axis="kv"))
    return kinds, transfers(log)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [(NANO, torch.float32), (replace(NANO, qk_norm=True), torch.float64)],
    ids=["fp32", "fp64 and norms of Q and K"],
)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_tensor_parallelism_sends_what_the_formula_says(world_size, sequence, config, dtype):
    traffic = tensor_parallel_traffic(
        shape_of(config),
        num_layers=config.num_layers,
        tp=world_size,
        number_bytes=dtype.itemsize,
        sequence_parallel=sequence,
    )
    ranks = run_ranks(run_tensor_parallel, world_size, config, sequence, dtype)
    for kinds, _ in ranks:
        assert kinds["all_reduce"] == told(traffic["all_reduce"])
        assert kinds["all_gather"] == told(traffic["all_gather"])
        assert kinds["kv"] == told(traffic["kv"])
        rings = traffic["reduce_scatter"] + traffic["gather_again"]
        assert kinds["send"] == (rings.num_messages, rings.bytes_sent)
    links = Fabric(alpha=ALPHA_S, beta=BETA_S, flops=1.0)
    expected = sum(traffic.values(), Traffic()).time_s(ALPHA_S, BETA_S)
    timeline = replay([rank[-1] for rank in ranks], links)
    assert timeline.step_s == pytest.approx(expected, rel=1e-9)


def told(traffic):
    return traffic.num_exchanges, traffic.bytes_sent


def shape_of(config):
    return BlockShape(
        batch_size=2,
        seq_len=8,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        qk_norm=config.qk_norm,
    )


def run_hsdp(group, ranks_per_node, numels):
    """The exchanges of HSDP by hand: two gathers, a reduce-scatter, an all-reduce of the shard."""
    world_size = dist.get_world_size(group)
    mesh = Mesh(dp=world_size // ranks_per_node, tp=ranks_per_node)
    node, across = mesh.group("tp"), mesh.group("dp")
    with EventLog() as log, CommLedger() as ledger:
        for numel in numels:
            shard = torch.zeros(-(-numel // ranks_per_node))
            whole = ring_all_gather(shard, node)
            ring_all_gather(shard, node)
            all_reduce(ring_reduce_scatter(whole, node), across)
    by_axis = [ledger.bytes_sent(axis=axis) for axis in ("tp", "dp")]
    return [*by_axis, ledger.count("all_reduce"), ledger.count("send"), transfers(log)]


@pytest.mark.parametrize("ranks_per_node", [1, 2, 4])
def test_hsdp_shards_inside_a_node_and_sums_shards_across(ranks_per_node):
    numels = [10, 41, 8]
    sizes = dict(ranks_per_node=ranks_per_node, num_nodes=4 // ranks_per_node)
    inside, across = hsdp_traffic(numels, **sizes, number_bytes=4)
    ranks = run_ranks(run_hsdp, 4, ranks_per_node, numels)
    for sent_inside, sent_across, sums, messages, _ in ranks:
        assert sent_inside == inside.bytes_sent
        assert sent_across == across.bytes_sent
        assert sums == across.num_exchanges
        assert messages == inside.num_messages
    slow = (1e-2, 1e-6)
    fabric = Fabric.of_nodes(ranks_per_node, intra=(ALPHA_S, BETA_S), inter=slow, flops=1.0)
    timeline = replay([rank[-1] for rank in ranks], fabric)
    expected = inside.time_s(ALPHA_S, BETA_S) + across.time_s(*slow)
    assert timeline.step_s == pytest.approx(expected, rel=1e-9)


def test_across_nodes_hsdp_sends_a_node_share_of_the_gradients_only():
    numels, sizes = [8192] * 3, dict(ranks_per_node=8, num_nodes=4)
    _, across = hsdp_traffic(numels, **sizes, number_bytes=2)
    parameters = 2 * sum(numels)
    assert across.bytes_sent == 2 * (4 - 1) / 4 * parameters / 8
    flat = zero_traffic(numels, stage=3, group_size=32, number_bytes=2)
    assert flat.bytes_sent == 3 * 31 / 32 * parameters
    assert flat.bytes_sent / across.bytes_sent == pytest.approx(15.5)


def test_a_stage_that_is_none():
    with pytest.raises(ValueError, match=r"stages \(0, 1, 2, 3\), got 4"):
        zero_traffic([1], stage=4, group_size=1, number_bytes=4)
