"""ZeRO's three stages: bytes held and bytes sent.

Promised: optimizer state, gradients and weights of a rank are at most 1/N of the whole plus
padding, by stage; in stage 3 the root and at most two units are whole at any moment; a step sends
(N-1)/N of the padded parameters twice, in stage 3 three times, to the byte.
Oracle: the closed form, and measure.memory and measure.ledger, which look from outside.
"""

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.measure.memory import LiveParameters, module_bytes
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.zero import ZeroOptimizer
from tests.parallel.sharding import ADAMW, Odd, nano, odd_batch, own_part, word_batch, word_loss

BUCKET_BYTES = 200_000
WORLDS = [1, 2, 4]
NUMEL = sum(p.numel() for p in nano().parameters())
LAYER_NUMEL = sum(p.numel() for p in nano().layers[0].parameters())
F64 = 8
STEP_BYTES = 4  # torch's AdamW counts steps in one fp32 number a piece


def held(group, stage):
    """Bytes after backward and after the step, and how much state the optimizer has."""
    module = nano()
    words = own_part(group, word_batch(0))
    if stage == 3:
        model = FullyShardedModel(module, group)
        optimizer = ADAMW(model.parameters())
        word_loss(model, words).backward()
        model.finish()
        optimizer.step()
        pieces, grads = model.pieces, [p.parameter.grad for p in model.pieces]
    else:
        zero = ZeroOptimizer(module, ADAMW, group, stage=stage, bucket_bytes=BUCKET_BYTES)
        word_loss(module, words).backward()
        whole = [p.grad for p in module.parameters()]
        zero.step()
        optimizer, pieces = zero.optimizer, zero.pieces
        grads = [*whole, *(p.parameter.grad for p in pieces)] if stage == 2 else whole
    num_pieces = sum(p.parameter.numel() > 0 for p in pieces)
    gradient_bytes = sum(
        {
            g.untyped_storage()._cdata: g.untyped_storage().nbytes() for g in grads if g is not None
        }.values()
    )
    sizes = module_bytes(module, optimizer)
    return sizes.parameter_bytes, gradient_bytes, sizes.optimizer_bytes - STEP_BYTES * num_pieces


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bytes_held_by_stage(stage, world_size):
    padding = 10 * F64  # a buffer of a bucket or a unit pads its shard by less than one element
    shard = NUMEL * F64 // world_size + padding
    whole = NUMEL * F64 + world_size * padding
    for parameter_bytes, gradient_bytes, optimizer_bytes in run_ranks(held, world_size, stage):
        assert parameter_bytes <= (shard if stage == 3 else whole)
        assert gradient_bytes <= (whole if stage == 1 else shard)
        assert optimizer_bytes <= 2 * shard
        assert optimizer_bytes >= 2 * (NUMEL // world_size - 10) * F64, "moments were counted"
        assert gradient_bytes >= (NUMEL // world_size - 10) * F64, "gradients were counted"


def gradients_alive(group, stage):
    """Most elements of whole gradients at any moment of backward."""
    module = nano()
    zero = ZeroOptimizer(module, ADAMW, group, stage=stage, bucket_bytes=BUCKET_BYTES)
    seen = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: seen.append(
                sum(p.grad.numel() for p in module.parameters() if p.grad is not None)
            )
        )
    word_loss(module, own_part(group, word_batch(0))).backward()
    zero.step()
    return max(seen)


def test_stage_2_never_has_more_than_two_buckets_of_gradient():
    assert run_ranks(gradients_alive, 2, 1) == [NUMEL] * 2
    assert max(run_ranks(gradients_alive, 2, 2)) <= 2 * BUCKET_BYTES // F64


def alive(group, prefetch):
    """Whole and sharded parameter bytes in the second step, when the order is known."""
    model = FullyShardedModel(nano(), group, prefetch=prefetch)
    words = own_part(group, word_batch(0))
    word_loss(model, words).backward()
    gc.collect()
    with LiveParameters(model) as live:
        word_loss(model, words).backward()
        after = live.now_bytes
    return live.peak_bytes, after


@pytest.mark.parametrize(("prefetch", "units"), [(True, 2), (False, 1)])
def test_the_root_and_two_units_are_alive(prefetch, units):
    padding = 10 * F64
    shards = NUMEL * F64 // 2
    most = NUMEL - 4 * LAYER_NUMEL + units * LAYER_NUMEL
    for peak_bytes, after_bytes in run_ranks(alive, 2, prefetch):
        assert shards + most * F64 - padding <= peak_bytes <= shards + most * F64 + padding
        assert after_bytes <= shards + padding


def padded(numels, world_size):
    return sum(-(-numel // world_size) * world_size for numel in numels)


def sent(group, stage, micro):
    module = nano()
    if stage == 3:
        model = FullyShardedModel(module, group)
        optimizer = ADAMW(model.parameters())
        after, sizes = model.finish, [unit.layout.padded_numel for unit in model._units]
    else:
        model = module
        optimizer = ZeroOptimizer(module, ADAMW, group, stage=stage, bucket_bytes=BUCKET_BYTES)
        after, sizes = lambda: None, [b.layout.padded_numel for b in optimizer._buckets]
    found = []
    for _ in range(2):
        with CommLedger() as ledger:
            for _ in range(micro):
                word_loss(model, own_part(group, word_batch(0))).backward()
            after()
            optimizer.step()
            optimizer.zero_grad()
        found.append((ledger.bytes_sent(), ledger.bytes_received(), ledger.count("send")))
    return sum(sizes), len(sizes), found


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 2), (3, 3)])
def test_traffic_to_the_byte(stage, times, world_size):
    for numel, messages, steps in run_ranks(sent, world_size, stage, 1):
        assert NUMEL <= numel < NUMEL + messages * world_size
        share = numel * F64 * (world_size - 1) // world_size
        expected = (times * share, times * share, times * messages * (world_size - 1))
        assert steps == [expected, expected], "one message to each rank, a buffer and exchange"


@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 4), (3, 9)])
def test_what_micro_batches_cost(stage, times):
    """Three of them: stage 1 sends gradients once, stage 2 thrice, stage 3 all thrice."""
    for numel, _, steps in run_ranks(sent, 2, stage, 3):
        assert steps[0][0] == times * numel * F64 // 2


def recomputed(group):
    """Bytes of a step without and with activation checkpointing around every unit."""
    found = []
    model = FullyShardedModel(nano(), group)
    for _ in range(2):
        with CommLedger() as ledger:
            word_loss(model, own_part(group, word_batch(0))).backward()
        found.append(ledger.bytes_sent())
        for layer in model.module.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return found


def test_recomputation_sends_nothing_more():
    for plain, again in run_ranks(recomputed, 2):
        assert plain == again


def extras(group):
    zero = ZeroOptimizer(Odd(), ADAMW, group, stage=1, clip_norm=1.0)
    with CommLedger() as ledger:
        zero.step(num_tokens=3)
    return ledger.count("all_reduce"), ledger.bytes_sent("all_reduce")


def test_a_norm_and_a_token_count_cost_eight_bytes_each():
    assert run_ranks(extras, 2) == [(2, 16)] * 2  # 2 (N-1)/N of 8 bytes, twice


def in_bf16(group):
    model = FullyShardedModel(nn.Linear(3, 5, bias=False), group, compute_dtype=torch.bfloat16)
    with CommLedger() as ledger:
        model(odd_batch(0).bfloat16()).sum().backward()
        model.finish()
    grads = [p.parameter.grad.dtype for p in model.pieces]
    return ledger.bytes_sent(), grads


def test_bf16_compute_sends_half_the_bytes():
    assert run_ranks(in_bf16, 2) == [(3 * 8 * 2, [torch.float32])] * 2  # 16 padded elements


def overlap(group):
    """Operations between the start of a gather and the first use: the order of events."""
    events = []
    model = FullyShardedModel(nano(), group)
    for number, unit in enumerate(model._units):
        unit.start_gather = partial(noted, events, ("gather", number), unit.start_gather, unit)
    for number, layer in enumerate(model.module.layers):
        layer.mlp.register_forward_hook(
            lambda module, args, out, number=number: events.append(("compute", number + 1))
        )
    for _ in range(2):
        events.clear()
        model(own_part(group, word_batch(0))[:, :-1])
    return events


def noted(events, event, call, unit):
    if unit.works is None:
        events.append(event)
    call()


def test_the_next_unit_is_on_its_way_while_one_computes():
    gathers = [("gather", n) for n in range(5)]
    expected = [gathers[0], gathers[1]]
    for number in range(1, 5):
        expected += [*gathers[number + 1 : number + 2], ("compute", number)]
    for events in run_ranks(overlap, 2):
        assert events == expected
