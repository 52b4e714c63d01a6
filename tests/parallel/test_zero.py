"""ZeroOptimizer, stages 1 and 2: the numbers.

Promised: N ranks that split a batch train as one process does with all of it, whatever the shards
cut through, and a parameter that nobody uses, or one that is shared or frozen, is treated as there.
Oracle: the same model and AdamW on one process, float64, the whole batch. Rows D11 and D13 of the
list of pitfalls; what is sent and held is in test_zero_bytes.py.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.launch import RankError, run_ranks
from labkit.parallel.zero import ZeroOptimizer
from tests.parallel.sharding import (
    ADAMW,
    CASES,
    TOL,
    Breaks,
    Odd,
    assert_gradients,
    nano,
    no_decay_of_vectors,
    odd_batch,
    own_part,
    serial,
    word_batch,
    word_loss,
)


def train(group, case, stage, expected, micro=1, **kwargs):
    """Compare every gradient piece and weight with the serial run, on the rank itself."""
    make, batch, loss = CASES[case]
    model = make()
    if dist.get_rank(group) > 0:
        for parameter in model.parameters():
            parameter.data.add_(1.0)  # the first rank's values count
    zero = ZeroOptimizer(model, ADAMW, group, stage=stage, bucket_bytes=30_000, **kwargs)
    for step, (grads, weights, norm) in enumerate(expected):
        for number in range(micro):
            loss(model, own_part(group, batch(step * micro + number))).backward()
        got_norm = zero.step()
        if norm is not None:
            torch.testing.assert_close(got_norm, norm, **TOL)
        assert_gradients(zero.pieces, grads)
        zero.zero_grad()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, weights[name], **TOL)
    return sum(piece.parameter.numel() for piece in zero.pieces)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_five_steps_match_one_process(case, stage, world_size):
    owned = run_ranks(train, world_size, case, stage, serial(case))
    trained = sum(p.numel() for p in CASES[case][0]().parameters() if p.requires_grad)
    assert sum(owned) == trained, "each element has one owner"


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_may_own_nothing(stage):
    def one(group):
        model = nn.Linear(1, 1, bias=False).double()
        zero = ZeroOptimizer(model, ADAMW, group, stage=stage)
        model(torch.ones(1, 1, dtype=torch.float64)).backward()
        zero.step()
        return [p.parameter.numel() for p in zero.pieces], model.weight.item()

    sizes, weights = zip(*run_ranks(one, 2), strict=True)
    assert sizes == ([1], [0])
    assert weights[0] == weights[1]


@pytest.mark.parametrize("stage", [1, 2])
def test_clipping_is_by_the_norm_of_all_shards(stage):
    clipped = partial(train, clip_norm=0.1)
    run_ranks(clipped, 4, "odd", stage, serial("odd", clip_norm=0.1))


@pytest.mark.parametrize("stage", [1, 2])
def test_vectors_without_decay(stage):
    expected = serial("tied", options=no_decay_of_vectors)
    run_ranks(partial(train, options=no_decay_of_vectors), 2, "tied", stage, expected)


@pytest.mark.parametrize("stage", [1, 2])
def test_micro_batches_add_up(stage):
    run_ranks(partial(train, micro=3), 2, "odd", stage, serial("odd", micro=3))


def by_tokens(group, stage):
    model, rank = Odd(), dist.get_rank(group)
    zero = ZeroOptimizer(model, ADAMW, group, stage=stage)
    rows = odd_batch(0)[:5] if rank == 0 else odd_batch(0)[5:]
    if rank < 2:  # the third has no batch left
        model(rows).square().sum().backward()
    zero.step(num_tokens=(5, 7, 0)[rank])
    return model.state_dict()


@pytest.mark.parametrize("stage", [1, 2])
def test_average_over_tokens(stage):
    expected = serial("odd")[0][1]
    for weights in run_ranks(by_tokens, 3, stage):
        for name, value in weights.items():
            torch.testing.assert_close(value, expected[name], **TOL)


class Branches(nn.Module):
    """Each rank uses a branch of its own; the last is nobody's."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ParameterList(
            torch.full((n,), 1.0, dtype=torch.float64) for n in (5, 3, 4)
        )

    def forward(self, which):
        return self.branches[which].square().sum()


def branches(group, stage):
    model = Branches()
    zero = ZeroOptimizer(model, ADAMW, group, stage=stage, bucket_bytes=8 * 5)
    for _ in range(2):
        model(dist.get_rank(group)).backward()
        zero.step()
        zero.zero_grad()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_parameter_that_some_ranks_use_and_one_that_none_does(stage):
    model = Branches()
    optimizer = ADAMW(model.parameters())
    for _ in range(2):
        (sum(model(which) for which in range(2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for weights in run_ranks(branches, 2, stage):
        for ours, theirs in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), **TOL)


def low_precision(group, stage):
    """Updates of 1e-4 vanish in bf16 near 1; the fp32 copies keep them."""
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    zero = ZeroOptimizer(model, partial(torch.optim.SGD, lr=1e-4), group, stage=stage)
    for _ in range(50):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        zero.step()
        zero.zero_grad()
    return model.weight.detach(), [p.parameter.dtype for p in zero.pieces]


@pytest.mark.parametrize("stage", [1, 2])
def test_half_precision_has_an_fp32_copy(stage):
    for weight, dtypes in run_ranks(low_precision, 2, stage):
        assert dtypes == [torch.float32]
        assert torch.equal(weight, torch.full((4, 4), 0.995).bfloat16())


def after_a_failure(group, stage):
    model = nano()
    zero = ZeroOptimizer(model, ADAMW, group, stage=stage, bucket_bytes=30_000)
    words = own_part(group, word_batch(0))
    handle = model.layers[1].register_forward_hook(lambda m, a, out: Breaks.apply(out))
    with pytest.raises(ArithmeticError):
        word_loss(model, words).backward()
    handle.remove()
    zero.zero_grad()
    word_loss(model, words).backward()
    zero.step()
    assert_gradients(zero.pieces, serial("nano")[0][0])


@pytest.mark.parametrize("stage", [1, 2])
def test_a_backward_that_failed_leaves_nothing_behind(stage):
    run_ranks(after_a_failure, 2, stage)


def in_rows(group, stage, expected):
    train(Mesh(dp=2, tp=2).group("dp"), "odd", stage, expected)


@pytest.mark.parametrize("stage", [1, 2])
def test_groups_that_are_not_the_world(stage):
    run_ranks(in_rows, 4, stage, serial("odd"))


def outside(group):
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        ZeroOptimizer(Odd(), ADAMW, pair, stage=1)


def test_errors():
    with pytest.raises(RankError, match="rank 2 of 3 is not in this group"):
        run_ranks(outside, 3)
    for kwargs, message in (
        ({"stage": 4}, "stage 4: ZeroOptimizer has 1 and 2, FullyShardedModel is 3"),
        ({"stage": 1, "clip_norm": 0.0}, "clip_norm is 0.0, it must be over 0"),
        ({"stage": 1, "bucket_bytes": 0}, "bucket_bytes is 0, the least is 1"),
    ):
        with pytest.raises(RankError, match=message):
            run_ranks(lambda group, kwargs: ZeroOptimizer(Odd(), ADAMW, group, **kwargs), 1, kwargs)
    with pytest.raises(RankError, match="0 parameters of the module need a gradient"):
        run_ranks(lambda group: ZeroOptimizer(nn.ReLU(), ADAMW, group, stage=1), 1)
