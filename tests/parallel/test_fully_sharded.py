"""FullyShardedModel, stage 3: the numbers.

Promised: N ranks train as one process does with the whole batch: outputs, every piece of every
gradient, weights after AdamW; whatever shards cut through, with and without prefetch, under
activation checkpointing, clipping, micro-batches, and in groups that are not the world.
Oracle: the same model and AdamW on one process, float64. What is sent and held is in
test_zero_bytes.py.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.comm.mesh import Mesh
from labkit.launch import RankError, run_ranks
from labkit.model.transformer import Block
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.recompute import recompute
from tests.parallel.sharding import (
    ADAMW,
    CASES,
    TOL,
    Breaks,
    Odd,
    Tied,
    assert_gradients,
    by_piece,
    nano,
    odd_batch,
    own_part,
    serial,
    word_batch,
    word_loss,
)


def train(group, case, expected, micro=1, clip_norm=None, prepare=None, **kwargs):
    make, batch, loss = CASES[case]
    module = make()
    if dist.get_rank(group) > 0:
        for parameter in module.parameters():
            parameter.data.add_(1.0)  # the first rank's values count
    model = FullyShardedModel(module, group, **kwargs)
    if prepare is not None:
        prepare(module)
    optimizer = ADAMW(p for p in model.parameters() if p.requires_grad)
    for step, (grads, weights, norm) in enumerate(expected):
        for number in range(micro):
            loss(model, own_part(group, batch(step * micro + number))).backward()
        model.finish()
        if clip_norm is not None:
            torch.testing.assert_close(model.clip_grad_norm_(clip_norm), norm, **TOL)
        assert_gradients(model.pieces, {name: grads.get(name) for name in weights})
        optimizer.step()
        optimizer.zero_grad()
        parts = by_piece(model.pieces, weights)
        for piece, part in zip(model.pieces, parts, strict=True):
            torch.testing.assert_close(piece.parameter.detach(), part, **TOL)
    return sum(piece.parameter.numel() for piece in model.pieces)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_five_steps_match_one_process(case, world_size):
    owned = run_ranks(train, world_size, case, serial(case))
    assert sum(owned) == sum(p.numel() for p in CASES[case][0]().parameters())


def test_without_prefetch():
    run_ranks(partial(train, prefetch=False), 2, "nano", serial("nano"))


def test_clipping_is_by_the_norm_of_all_shards():
    clipped = partial(train, clip_norm=0.1)
    run_ranks(clipped, 4, "odd", serial("odd", clip_norm=0.1))


def test_micro_batches_add_up():
    run_ranks(partial(train, micro=3), 2, "nano", serial("nano", micro=3))


def checkpointed(module):
    """Recompute every block in backward."""
    for block in module.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def checkpointed_around(module):
    """The same from outside: the unit's hooks run again in backward."""
    for i, block in enumerate(module.layers):
        outer = nn.Module()
        outer.inner = block
        outer.forward = partial(checkpoint, block, use_reentrant=False)
        module.layers[i] = outer


def recomputed(module):
    """Ours in the place of torch's checkpoint."""
    for block in module.layers:
        block.forward = partial(recompute, block.forward)


@pytest.mark.parametrize("prepare", [checkpointed, checkpointed_around, recomputed])
def test_under_activation_checkpointing(prepare):
    run_ranks(partial(train, prepare=prepare), 2, "nano", serial("nano"))


def in_rows(group, expected):
    train(Mesh(dp=2, tp=2).group("dp"), "odd", expected)


def test_groups_that_are_not_the_world():
    run_ranks(in_rows, 4, serial("odd"))


def outputs(group):
    model = FullyShardedModel(nano(), group)
    words = word_batch(0)[:, :-1]
    with torch.no_grad():
        first = model(words)
    second = model(words)
    return first, second.detach(), [tuple(p.shape) for p in model.parameters()]


def test_outputs_are_those_of_one_process_and_weights_go_again():
    expected = nano()(word_batch(0)[:, :-1]).detach()
    for first, second, shapes in run_ranks(outputs, 2):
        assert torch.equal(first, expected), "gathered weights are the weights"
        assert torch.equal(second, expected)
        assert all(len(shape) == 1 for shape in shapes)


def by_tokens(group):
    model = FullyShardedModel(Odd(), group)
    rows = odd_batch(0)[:5] if dist.get_rank(group) == 0 else odd_batch(0)[5:]
    model(rows).square().sum().backward()
    model.finish(num_tokens=len(rows))
    assert_gradients(model.pieces, serial("odd")[0][0] | {"frozen": None})


def test_average_over_tokens():
    run_ranks(by_tokens, 2)


class Stack(nn.Module):
    """Layers that are called in another order than they are listed in, one of them twice."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.order = order
        self.double()

    def forward(self, x):
        for which in self.order:
            x = torch.tanh(self.layers[which](x))
        return x


def stacked(group, order):
    model = FullyShardedModel(Stack(order), group)
    for _ in range(2):  # the second forward knows the order
        model.zero_grad()
        model(own_part(group, odd_batch(0))).square().mean().backward()
        model.finish()
    oracle = Stack(order)
    oracle(odd_batch(0)).square().mean().backward()
    assert_gradients(model.pieces, {name: p.grad for name, p in oracle.named_parameters()})


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 0, 1), (1, 0, 0)])
def test_units_in_any_order_twice_or_not_at_all(order):
    run_ranks(stacked, 2, order)


def low_precision(group):
    """fp32 shards keep updates that bf16 would lose; what is gathered and sent is bf16."""
    module = nn.Linear(4, 4, bias=False)
    nn.init.ones_(module.weight)
    model = FullyShardedModel(module, group, compute_dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(50):
        output = model(torch.ones(1, 4, dtype=torch.bfloat16))
        output.sum().backward()
        model.finish()
        optimizer.step()
        optimizer.zero_grad()
    return output.dtype, module.weight.detach()


def test_fp32_shards_and_bf16_compute():
    for dtype, shard in run_ranks(low_precision, 2):
        assert dtype == torch.bfloat16
        torch.testing.assert_close(shard, torch.full((8,), 0.995), rtol=0, atol=1e-5)


def after_a_failure(group):
    model = FullyShardedModel(nano(), group)
    words = own_part(group, word_batch(0))
    handle = model.module.layers[1].register_forward_hook(lambda m, a, out: Breaks.apply(out))
    with pytest.raises(ArithmeticError):
        word_loss(model, words).backward()
    handle.remove()
    word_loss(model, words).backward()
    model.finish()
    assert_gradients(model.pieces, serial("nano")[0][0])


def test_a_backward_that_failed_leaves_nothing_behind():
    run_ranks(after_a_failure, 2)


def two_dtypes():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    return module, [module]


def tied_apart():
    module = Tied()
    return module, [module.first, module.second]


def nested():
    module = nano()
    return module, [module.layers[0], module.layers[0].mlp]


def foreign():
    return Odd(), [nn.ReLU()]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (two_dtypes, "0.weight is torch.float32, 1.weight is torch.float64: a unit has one dtype"),
        (tied_apart, "first.weight and second.weight are one parameter in two units"),
        (nested, "layers.0.mlp is in two units"),
        (foreign, "a unit of type ReLU is no part of the module"),
        (lambda: (nn.ReLU(), None), "the module has 0 parameters"),
    ],
)
def test_errors(make, message):
    def build(group):
        module, units = make()
        FullyShardedModel(module, group, units=units)

    with pytest.raises(RankError, match=message):
        run_ranks(build, 1)


def test_default_units_are_the_outermost_layers():
    def sizes(group):
        module = nano()
        module.layers[0].experts = nn.ModuleList([Block(module.config, 0).double()])
        return len(FullyShardedModel(module, group)._units)

    assert run_ranks(sizes, 1) == [5]  # four layers and the root


class Headless(nn.Module):
    """What the last unit returns is what the root returns, as in a stage of a pipeline."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3).double()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(2))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_root_may_return_what_the_last_unit_returns():
    def train(group):
        model = FullyShardedModel(Headless(), group)
        for number in range(2):
            model(own_part(group, odd_batch(number))).square().mean().backward()
        model.finish()
        assert_gradients(model.pieces, expected)

    module = Headless()
    for number in range(2):
        module(odd_batch(number)).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    run_ranks(train, 2)
