"""Column- and row-parallel linear layers, MLP and attention.

Promised: the numbers of the whole module on 1, 2 and 4 ranks: outputs, the input's gradient, and
each shard of each weight's; one all-reduce a region and way; inputs, gradients and the whole module
left alone; shards only, in own memory. Pitfalls T1, G1 and G5 have a test each.
Oracle: the whole module on one process, float64.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.comm.split import Split, replica_group
from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger
from labkit.measure.memory import module_bytes
from labkit.model.attention import Attention
from labkit.model.config import ModelConfig
from labkit.model.layers import SwiGLU, rope_frequencies, rope_table
from labkit.parallel.tensor import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelMLP,
    RowParallelLinear,
)

TOL = dict(rtol=0, atol=1e-12)  # sums of at most 60 terms of unit scale in float64
B, T, D = 3, 5, 8
CONFIG = ModelConfig(
    num_layers=1,
    hidden_size=D,
    intermediate_size=12,
    num_heads=8,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=11,
    max_seq_len=16,
    qk_norm=True,
    attention_bias=True,
)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def filled(module):
    generator = torch.Generator().manual_seed(1)
    for parameter in module.double().parameters():
        parameter.data.normal_(generator=generator)
    return module


def attention_inputs():
    return rope_table(torch.arange(T), rope_frequencies(CONFIG), torch.float64)


KINDS = {
    "column": lambda: (nn.Linear(D, 12), ()),
    "column without bias": lambda: (nn.Linear(D, 12, bias=False), ()),
    "row": lambda: (nn.Linear(D, 7), ()),
    "row without bias": lambda: (nn.Linear(D, 7, bias=False), ()),
    "mlp": lambda: (SwiGLU(D, 12), ()),
    "attention": lambda: (Attention(CONFIG, 0), attention_inputs()),
}


def split(kind, whole, group):
    if kind == "mlp":
        return ParallelMLP(whole, group)
    if kind == "attention":
        more_ranks = dist.get_world_size(group) > CONFIG.num_kv_heads
        kv_group = replica_group(group, CONFIG.num_kv_heads) if more_ranks else None
        return ParallelAttention(whole, group, kv_group=kv_group)
    return (RowParallelLinear if kind.startswith("row") else ColumnParallelLinear)(whole, group)


def layout(module):
    """(name, parameter, how it is cut)"""
    for name, parameter in module.named_parameters():
        owner, _, last = name.rpartition(".")
        splits = getattr(module.get_submodule(owner), "splits", {})
        yield name, parameter, splits.get(last, Split(size=parameter.shape[0]))


def against_whole(group, kind):
    """Largest errors of output, input gradient and parameter gradients; and the ledger's counts."""
    whole, rest = KINDS[kind]()
    whole = filled(whole)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    module = split(kind, whole, group)
    before = copy.deepcopy(whole.state_dict())
    x = normal(B, T, D)
    own = Split(dim=2, size=D, parts=size if kind.startswith("row") else 1)
    inputs = [x.clone().requires_grad_(), own.cut(x, rank, size).requires_grad_()]
    y = whole(inputs[0], *rest)
    out = Split(dim=2, size=y.shape[2], parts=size if kind.startswith("column") else 1)
    upstream = normal(*y.shape, seed=2)
    y.backward(upstream)
    grad = out.cut(upstream, rank, size)
    with CommLedger() as forward:
        mine = module(inputs[1], *rest)
    with CommLedger() as backward:
        mine.backward(grad)
    errors = {
        "output": mine - out.cut(y, rank, size),
        "input": inputs[1].grad - own.cut(inputs[0].grad, rank, size),
    }
    for name, parameter, cut in layout(module):
        expected = cut.cut(whole.get_parameter(name).grad, rank, size)
        errors[name] = parameter.grad - expected
    assert {name for name, *_ in layout(module)} == set(before), "names are the whole module's"
    assert torch.equal(grad, out.cut(upstream, rank, size)), "G1: the incoming gradient is changed"
    assert torch.equal(inputs[1], own.cut(x, rank, size)), "the input is changed"
    assert all(torch.equal(value, before[n]) for n, value in whole.state_dict().items())
    assert module_bytes(module).parameter_bytes == sum(p.nbytes for p in module.parameters())
    calls = [[(op.operation, op.axis) for op in each.ops] for each in (forward, backward)]
    return {name: error.abs().max().item() for name, error in errors.items()}, *calls


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_the_whole_module(kind, world_size):
    one = [("all_reduce", "world")]
    for errors, forward, backward in run_ranks(against_whole, world_size, kind):
        assert max(errors.values()) < TOL["atol"], errors
        assert forward == ([] if kind.startswith("column") else one)
        if kind == "attention":  # the gains of Q's and K's norm, and K and V where replicated
            assert sorted(backward) == sorted(2 * one + [("all_reduce", "kv")] * (world_size == 4))
        else:
            assert backward == ([] if kind.startswith("row") else one)


def plain_attention(group):
    """Without gains and biases: what a Llama layer sends."""
    config = ModelConfig(**vars(CONFIG) | dict(qk_norm=False, attention_bias=False))
    module = split("attention", filled(Attention(config, 0)), group)
    with CommLedger() as ledger:
        module(normal(B, T, D).requires_grad_(), *attention_inputs()).sum().backward()
    return ledger.count("all_reduce", "world"), ledger.count("all_reduce", "kv"), ledger.count()


@pytest.mark.parametrize(("world_size", "kv"), [(1, 0), (2, 0), (4, 1)])
def test_one_all_reduce_a_way_and_one_for_the_replicas(world_size, kv):
    assert run_ranks(plain_attention, world_size) == [(2, kv, 2 + kv)] * world_size


def bias_once(group):
    whole = nn.Linear(4, 3).double()
    nn.init.constant_(whole.bias, 10.0)
    row = RowParallelLinear(whole, group)
    optimizer = torch.optim.SGD(row.parameters(), lr=0.1)
    y = row(torch.zeros(2, 5, 2, dtype=torch.float64))
    y.sum().backward()
    optimizer.step()
    return y, row.bias.grad, row.bias


def test_the_bias_of_rows_is_added_once():
    """T1: 10, not 20; each of 10 tokens counts once in its gradient; ranks stay equal."""
    ranks = run_ranks(bias_once, 2)
    for y, grad, bias in ranks:
        assert bool((y == 10.0).all())
        assert grad.tolist() == [10.0] * 3
        assert torch.equal(bias, ranks[0][2])


def frozen(group, kind, what):
    whole, rest = KINDS[kind]()
    whole = filled(whole)
    x = normal(B, T, D)
    if kind == "row":
        x = x.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)]
    whole.requires_grad_(what == "input")
    module = split(kind, whole, group)
    x.requires_grad_(what == "weights")
    with CommLedger() as ledger:
        module(x, *rest).sum().backward()
    grads = [p.grad is not None for p in module.parameters()]
    backward = ledger.count() - (kind != "column")
    return x.grad is not None, all(grads), any(grads), backward


@pytest.mark.parametrize("kind", ["column", "row", "mlp", "attention"])
def test_what_is_frozen_costs_nothing(kind):
    """G5: no gradient that nobody asked for, and no message for it."""
    for x, _, some, backward in run_ranks(frozen, 2, kind, "weights"):
        assert (x, some, backward) == (True, False, kind != "row")
    for x, all_of_them, _, backward in run_ranks(frozen, 2, kind, "input"):
        assert (x, all_of_them, backward) == (False, True, kind == "attention")  # the gains' sum


def refused(group, what):
    config = vars(CONFIG)
    pair = Mesh(dp=dist.get_world_size(group)).group("tp")  # this rank alone
    makers = {
        "column": lambda: ColumnParallelLinear(nn.Linear(4, 8), group),
        "row": lambda: RowParallelLinear(nn.Linear(8, 4), group),
        "mlp": lambda: ParallelMLP(SwiGLU(D, 8), group),
        "heads": lambda: ParallelAttention(Attention(CONFIG, 0), group),
        "kv": lambda: ParallelAttention(
            Attention(ModelConfig(**config | dict(num_heads=6, num_kv_heads=2)), 0), group
        ),
        "no kv group": lambda: ParallelAttention(
            Attention(ModelConfig(**config | dict(num_heads=6, num_kv_heads=1)), 0), group
        ),
        "wrong kv group": lambda: ParallelAttention(
            Attention(ModelConfig(**config | dict(num_heads=6, num_kv_heads=1)), 0),
            group,
            kv_group=pair,
        ),
        "split twice": lambda: ParallelMLP(ParallelMLP(SwiGLU(D, 12), pair), group),
    }
    with CommLedger() as ledger:
        try:
            makers[what]()
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("column", "8 output columns over tp=3"),
        ("row", "8 input columns over tp=3"),
        ("mlp", "8 output columns over tp=3"),
        ("heads", "8 heads over tp=3"),
        ("kv", "2 KV heads over tp=3"),
        ("no kv group", "1 KV heads over tp=3: each is on 3 ranks"),
        ("wrong kv group", "a group of 1 ranks for KV heads that 3 ranks hold"),
        ("split twice", "expected a whole nn.Linear, got ColumnParallelLinear"),
    ],
)
def test_a_wrong_shape_is_refused_on_every_rank(what, told):
    for message, calls in run_ranks(refused, 3, what):
        assert told in message
        assert calls == 0


def outsider(group):
    pair = dist.new_group([0, 1])
    ColumnParallelLinear(nn.Linear(4, 8), pair)


def test_a_group_that_is_not_the_callers_is_refused():
    with pytest.raises(RankError, match="rank 2 is not in the group"):
        run_ranks(outsider, 3)
