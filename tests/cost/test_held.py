"""Weights that a rank of ZeRO 3 holds, unit by unit. Oracle: LiveParameters on a running rank."""

from functools import partial

import pytest
import torch

from labkit.cost.held import zero3_held_bytes
from labkit.launch import run_ranks
from labkit.measure.memory import LiveParameters
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, next_token_loss
from labkit.parallel.fully_sharded import FullyShardedModel

NANO = PRESETS["nano"]
TOKENS = torch.arange(9).view(1, 9)


def one_step(model):
    next_token_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
    model.finish()


def measured(group, prefetch):
    """Bytes alive while each layer runs, forward and backward, and the largest sum of all."""
    model = Transformer(NANO)
    sharded = FullyShardedModel(model, group, prefetch=prefetch)
    points = []
    with LiveParameters(model) as live:
        one_step(sharded)  # learns the order, and the meter learns which buffers there are

        def look(_):
            points.append(live.now_bytes)

        def after(module, inputs, output):
            output.register_hook(look)  # the unit's own hook is there already: it has gathered

        for layer in model.layers:
            layer.register_forward_pre_hook(lambda *_: look(None))
            layer.register_forward_hook(after)
        points.append(live.now_bytes)
        loss = next_token_loss(sharded(TOKENS[:, :-1]), TOKENS[:, 1:])
        points.append(live.now_bytes)
        loss.backward()
        points.append(live.now_bytes)
    return points, live.peak_bytes


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_what_a_rank_holds_unit_by_unit(world_size, prefetch):
    layers = [sum(p.numel() for p in layer.parameters()) for layer in Transformer(NANO).layers]
    root = sum(p.numel() for p in Transformer(NANO).parameters()) - sum(layers)
    sizes = dict(group_size=world_size, number_bytes=4, prefetch=prefetch)
    points = zero3_held_bytes(layers, root, **sizes)
    predicted = [point.held_bytes for point in points]
    for held, peak in run_ranks(partial(measured, prefetch=prefetch), world_size):
        assert held == predicted
        assert peak == max(predicted)


def test_the_order_and_the_padding():
    points = zero3_held_bytes([3, 5], 2, group_size=4, number_bytes=1)
    told = [(point.phase, point.unit, point.held_bytes) for point in points]
    shards = (4 + 8 + 4) // 4
    assert told == [
        ("start", None, shards),
        ("forward", 0, shards + 4 + 4 + 8),
        ("forward", 1, shards + 4 + 8),
        ("between", None, shards),
        ("backward", 1, shards + 4 + 8 + 4),
        ("backward", 0, shards + 4 + 4),
        ("end", None, shards),
    ]
