"""NaiveDataParallel and BucketedDataParallel: the numbers.

Promised: N ranks that split a batch do what one process does with all of it. Parameters come from
group rank 0, backward leaves them alone, and every rank gets the same gradient to the last bit.
Oracle: the same model on one process, float64, the whole batch. Rows D1, D3, D6, D8, D9, D13 of the
list of pitfalls each have a test here; what is sent, and when, is in test_data_messages.py.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.launch import run_ranks
from labkit.model.config import ModelConfig
from labkit.model.transformer import IGNORE, Transformer, initialise, next_token_loss
from labkit.parallel.data import BucketedDataParallel, NaiveDataParallel

# Sums of at most 60 terms of unit scale in float64: rounding stays below 1e-14.
TOL = dict(rtol=0, atol=1e-12)
BUCKET_BYTES = 100  # 12 float64: several buckets for the small models here
WRAPPERS = {
    "naive": NaiveDataParallel,
    "bucketed": lambda module, group: BucketedDataParallel(
        module, group, bucket_bytes=BUCKET_BYTES
    ),
}
ROWS = 12  # divides by 1, 2, 3 and 4


class Net(nn.Module):
    """Odd shapes, a weight used twice, a shared one, one of size 1 and a frozen one."""

    def __init__(self, seed):
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.twice = nn.Linear(5, 5)
        self.frozen = nn.Linear(5, 5)
        self.last = nn.Linear(5, 41)
        self.tied = nn.Linear(5, 41, bias=False)
        self.tied.weight = self.last.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        h = self.twice(torch.tanh(self.twice(torch.tanh(self.first(x)))))
        return self.scale * (self.last(h) + self.tied(torch.tanh(self.frozen(h))))


def data(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, 41, generator=generator, dtype=torch.float64)


def loss(model, x, y):
    return (model(x) - y).square().mean()


def own_part(group, *tensors):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return [tensor.chunk(size)[rank] for tensor in tensors]


def grads(module):
    return [p.grad for p in module.parameters()]


def assert_same(got, expected, **tolerance):
    for ours, theirs in zip(got, expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs, **(tolerance or TOL))


def one_step(group, kind):
    net = Net(seed=dist.get_rank(group))  # different weights on every rank
    model = WRAPPERS[kind](net, group)
    before = copy.deepcopy(net.state_dict())
    loss(model, *own_part(group, *data())).backward()
    model.finish()
    untouched = all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    return untouched, grads(net)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_one_step_matches_one_process(kind, world_size):
    oracle = Net(seed=0)
    loss(oracle, *data()).backward()
    ranks = run_ranks(one_step, world_size, kind)
    for untouched, got in ranks:
        assert untouched, "backward or finish changed a parameter (D9)"
        assert_same(got, grads(oracle))
        assert_same(got, ranks[0][1], rtol=0, atol=0)


def train(model, finish, optimizer, batches):
    for x, y in batches:
        loss(model, x, y).backward()
        finish()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


def twenty_steps(group, kind, optimizer, synchronised=True):
    model = WRAPPERS[kind](Net(seed=dist.get_rank(group)), group)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    batches = [own_part(group, *data(seed=step)) for step in range(20)]
    if not synchronised:
        return train(model.module, lambda: None, optimizer, batches)
    return train(model, model.finish, optimizer, batches)


@pytest.mark.parametrize(
    ("kind", "optimizer", "world_size"),
    [("naive", "sgd", 2), ("bucketed", "sgd", 2), ("bucketed", "adamw", 4), ("naive", "sgd", 4)],
)
def test_twenty_steps_match_one_process(kind, optimizer, world_size):
    oracle = Net(seed=0)
    batches = [data(seed=step) for step in range(20)]
    made = OPTIMIZERS[optimizer](oracle.parameters())
    expected = train(oracle, lambda: None, made, batches)
    for got in run_ranks(twenty_steps, world_size, kind, optimizer):
        assert_same(got, expected, rtol=1e-9, atol=1e-12)


def test_the_tolerance_would_catch_gradients_that_stay_local():
    oracle = Net(seed=0)
    made = OPTIMIZERS["sgd"](oracle.parameters())
    expected = train(oracle, lambda: None, made, [data(seed=step) for step in range(20)])
    local = run_ranks(twenty_steps, 2, "naive", "sgd", False)[0]
    worst = max((a - b).abs().max() / b.abs().max() for a, b in zip(local, expected, strict=True))
    assert worst > 100 * 1e-9


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("a", "b", "never", "unlucky"):
            self.register_parameter(name, nn.Parameter(torch.ones(2, 3, dtype=torch.float64)))


def skip_a_branch(group, kind):
    model = WRAPPERS[kind](Branches(), group)
    module, rank = model.module, dist.get_rank(group)
    total = (1.0 + rank) * module.a.sum()
    if rank == 0:
        total = total + 6.0 * module.b.sum() + (-0.0) * module.unlucky.sum()
    total.backward()
    model.finish()
    return grads(module)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_branch_that_one_rank_skips(kind):
    """D1: no hang; zero from who skips; None only where nobody used it."""
    for a, b, never, unlucky in run_ranks(skip_a_branch, 2, kind):
        assert torch.equal(a, torch.full((2, 3), 1.5, dtype=torch.float64))
        assert torch.equal(b, torch.full((2, 3), 3.0, dtype=torch.float64))
        assert never is None
        assert torch.equal(unlucky, torch.zeros(2, 3, dtype=torch.float64)), "used, gradient -0.0"


def weigh_tokens(group, kind, micro_batches):
    """Token losses (1, 1, 1) and (5), on ranks or in micro-batches."""
    model = WRAPPERS[kind](nn.Linear(1, 1, bias=False).double(), group)
    nn.init.ones_(model.module.weight)
    mine = micro_batches[dist.get_rank(group)]
    for part in mine:
        tokens = torch.tensor(part, dtype=torch.float64).unsqueeze(1)  # [tokens, 1]
        if kind == "bucketed" and part is not mine[-1]:
            with model.no_sync():
                model(tokens).sum().backward()
        else:
            model(tokens).sum().backward()
    model.finish(num_tokens=sum(map(len, mine)))
    return model.module.weight.grad.item()


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize(
    "by_rank",
    [
        [[[1, 1, 1], [5]]],  # accumulation
        [[[1, 1, 1]], [[5]]],  # ranks
        [[[1], [1, 1]], [[5], []]],  # both, and a micro-batch without a token
        [[[1, 1, 1], [5]], [[], []]],  # a rank that has run out of batches
    ],
)
def test_every_token_weighs_the_same(kind, by_rank):
    """D3: the mean over tokens is 2.0; the mean of the two means would be 3.0."""
    assert run_ranks(weigh_tokens, len(by_rank), kind, by_rank) == [2.0] * len(by_rank)


def no_token_anywhere(group):
    model = BucketedDataParallel(nn.Linear(1, 1).double(), group)
    model.finish(num_tokens=0)
    return grads(model.module)


def test_a_step_without_a_token_has_no_gradient():
    assert run_ranks(no_token_anywhere, 2) == [[None, None]] * 2


def tiny_transformer(seed):
    config = ModelConfig(
        num_layers=2,
        hidden_size=12,
        intermediate_size=20,
        num_heads=2,
        num_kv_heads=1,
        head_dim=6,
        vocab_size=41,
        max_seq_len=16,
        tied=True,
    )
    model = Transformer(config).double()
    initialise(model, torch.Generator().manual_seed(seed))
    return model


def tokens():
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 41, (8, 8), generator=generator)
    targets = words[:, 1:].clone()
    targets[:3, 2:] = IGNORE  # ranks score different numbers of tokens
    return words[:, :-1], targets  # [B, T]


def accumulate(group, num_micro_batches):
    model = BucketedDataParallel(tiny_transformer(dist.get_rank(group)), group, bucket_bytes=2000)
    x, y = own_part(group, *tokens())
    *first, last = zip(x.chunk(num_micro_batches), y.chunk(num_micro_batches), strict=True)
    with model.no_sync():
        for part, targets in first:
            next_token_loss(model(part), targets, reduction="sum").backward()
    next_token_loss(model(last[0]), last[1], reduction="sum").backward()
    model.finish(num_tokens=int((y != IGNORE).sum()))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return norm, grads(model.module)


@pytest.mark.parametrize(("world_size", "num_micro_batches"), [(1, 4), (2, 1), (2, 4), (4, 2)])
def test_the_course_model_with_accumulation_and_clipping(world_size, num_micro_batches):
    """Tied embedding (D8), unequal token counts (D3), and one global norm."""
    oracle = tiny_transformer(0)
    x, y = tokens()
    next_token_loss(oracle(x), y).backward()
    expected = nn.utils.clip_grad_norm_(oracle.parameters(), 0.01)
    for norm, got in run_ranks(accumulate, world_size, num_micro_batches):
        torch.testing.assert_close(norm, expected, **TOL)
        assert norm > 0.01, "nothing would be clipped"
        assert_same(got, grads(oracle))


def in_groups(group, kind):
    """Each group's own mean: rows and columns of a mesh, and a group in another order."""
    grid, line = Mesh(dp=2, tp=2), Mesh(dp=4, ranks=(3, 1, 2, 0))
    groups = [grid.group("dp"), grid.group("tp"), line.group("dp")]
    found = []
    for one in groups:
        linear = nn.Linear(1, 1, bias=False).double()
        linear.weight.data.fill_(10.0 + dist.get_rank())
        model = WRAPPERS[kind](linear, one)
        weight = linear.weight.item()
        model(torch.full((1, 1), float(dist.get_rank()), dtype=torch.float64)).sum().backward()
        model.finish()
        ranks = dist.get_process_group_ranks(one)
        found.append((ranks, weight, linear.weight.grad.item()))
    return found


@pytest.mark.parametrize("kind", WRAPPERS)
def test_groups_whose_first_rank_is_not_zero(kind):
    """D13: the root is the group's first rank, by its global number."""
    for found in run_ranks(in_groups, 4, kind):
        assert found[-1][0] == [3, 1, 2, 0]
        for ranks, weight, gradient in found:
            assert weight == 10.0 + ranks[0]
            assert gradient == sum(ranks) / len(ranks)


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.transposed = nn.Parameter(torch.zeros(5, 3).t())  # strides (1, 3)
        self.gain = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))

    def forward(self, x):
        return (self.norm(x) * self.gain) @ self.transposed


def odd_tensors(group, kind):
    rank = dist.get_rank(group)
    module = Statistics()
    module.transposed.data.copy_(torch.arange(15.0).view(3, 5) + 100 * rank)
    module.mask.fill_(rank == 0)
    model = WRAPPERS[kind](module, group)
    sent = module.transposed.detach().clone(), module.mask.clone()
    model(torch.full((4, 3), float(rank))).sum().backward()
    model.finish()
    own = module.norm.running_mean.clone()
    if kind == "bucketed":
        model.broadcast_buffers()
    return sent, own, module.norm.running_mean, module.gain.grad, module.norm.num_batches_tracked


@pytest.mark.parametrize("kind", WRAPPERS)
def test_strides_dtypes_and_buffers(kind):
    """D6: a transposed parameter arrives whole. Running statistics stay apart until asked."""
    ranks = run_ranks(odd_tensors, 2, kind)
    for rank, ((weight, mask), own, after, gain, batches) in enumerate(ranks):
        assert torch.equal(weight, torch.arange(15.0).view(3, 5))
        assert mask.tolist() == [True, True]
        assert own.tolist() == pytest.approx([0.1 * rank] * 3)
        assert torch.equal(after, ranks[0][1] if kind == "bucketed" else own)
        assert gain.dtype == torch.bfloat16
        assert batches == 1
