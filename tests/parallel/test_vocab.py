"""Embedding by words and by columns, and the output projection by words.

Promised: vectors, logits and every gradient of the whole table on 1, 2 and 4 ranks, for numbers of
words that do not divide (pitfall T4) or are fewer than ranks; padded rows are zero and stay without
gradient; one collective each way at most, and none for logits.
Oracle: nn.Embedding and nn.Linear on one process, float64.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.split import Split
from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.vocab import (
    HiddenParallelEmbedding,
    VocabParallelEmbedding,
    VocabParallelHead,
)

TOL = dict(rtol=0, atol=1e-12)
B, T, D = 3, 5, 8


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def table(num_words):
    return nn.Embedding.from_pretrained(normal(num_words, D, seed=1), freeze=False)


def some_words(num_words):
    words = torch.randint(0, num_words, (B, T), generator=torch.Generator().manual_seed(2))
    words[0, 0], words[0, 1], words[1, 0] = 0, num_words - 1, num_words - 1
    return words


def embed(group, kind, num_words):
    whole, words, upstream = table(num_words), some_words(num_words), normal(B, T, D, seed=3)
    expected = whole(words)
    expected.backward(upstream)
    module = kind(whole, group)
    with CommLedger() as ledger:
        y = module(words)
        y.backward(upstream)
    cut = module.splits["weight"]
    return (
        torch.equal(y, expected),  # a sum of one vector and zeros: nothing is rounded
        torch.equal(
            module.weight.grad,
            cut.cut(whole.weight.grad, dist.get_rank(group), dist.get_world_size(group)),
        ),
        torch.equal(upstream, normal(B, T, D, seed=3)),
        [op.operation for op in ledger.ops],
        module.weight.shape,
    )


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_words", [3, 11, 12])
def test_embedding_by_words(num_words, world_size):
    for *same, calls, shape in run_ranks(embed, world_size, VocabParallelEmbedding, num_words):
        assert all(same)
        assert calls == ["all_reduce"]
        assert shape == (-(-num_words // world_size), D)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_embedding_by_columns_gathers_once(world_size):
    """One all-gather forward, nothing backward, no all-reduce."""
    for *same, calls, shape in run_ranks(embed, world_size, HiddenParallelEmbedding, 11):
        assert all(same)
        assert calls == ["all_gather"]
        assert shape == (11, D // world_size)


def project(group, num_words):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = nn.Linear(D, num_words, bias=False).double()
    whole.weight.data = normal(num_words, D, seed=1)
    head = VocabParallelHead(whole, group)
    x = normal(B, T, D)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    upstream = normal(B, T, num_words, seed=3)
    y = whole(inputs[0])
    y.backward(upstream)
    cut, rows = Split(dim=2, size=num_words, parts=size), head.splits["weight"]
    grad = cut.cut(upstream, rank, size)
    grad[..., head.num_own :] = 7.0  # whatever a loss says about padding
    with CommLedger() as ledger:
        logits = head(inputs[1])
        logits.backward(grad)
    padding = logits[..., head.num_own :]
    errors = [
        (logits - cut.cut(y, rank, size))[..., : head.num_own],
        inputs[1].grad - inputs[0].grad,
        head.weight.grad - rows.cut(whole.weight.grad, rank, size),
    ]
    calls = [(op.operation, op.payload_bytes) for op in ledger.ops]
    return errors, bool((padding == float("-inf")).all()), head.weight[head.num_own :], calls


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_words", [3, 11, 12])
def test_output_by_words(num_words, world_size):
    """Padding scores -inf and has no gradient; the input's gradient is all that is sent."""
    for errors, padded, rows, calls in run_ranks(project, world_size, num_words):
        for error in errors:
            torch.testing.assert_close(error, torch.zeros_like(error), **TOL)
        assert padded
        assert not rows.any()
        assert calls == [("all_reduce", B * T * D * 8)]


def tied(group):
    whole, words = table(11), some_words(11)
    torch.nn.functional.linear(whole(words), whole.weight).square().sum().backward()
    embedding = VocabParallelEmbedding(whole, group)
    head = VocabParallelHead(embedding, group)
    logits = head(embedding(words))
    logits.masked_fill(logits == float("-inf"), 0.0).square().sum().backward()
    cut = head.splits["weight"]
    expected = cut.cut(whole.weight.grad, dist.get_rank(group), dist.get_world_size(group))
    return head.weight is embedding.weight, embedding.weight.grad - expected, expected


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_tied_head_shares_the_parameter(world_size):
    for shared, error, expected in run_ranks(tied, world_size):
        assert shared
        assert error.abs().max() <= 1e-12 * max(1.0, expected.abs().max())


def refused(group, what):
    makers = {
        "width": lambda: HiddenParallelEmbedding(table(11), group),
        "padding": lambda: VocabParallelEmbedding(nn.Embedding(4, 3, padding_idx=1), group),
        "bias": lambda: VocabParallelHead(nn.Linear(4, 11), group),
        "word": lambda: VocabParallelEmbedding(table(11), group)(torch.tensor([[0, 11]])),
        "column word": lambda: HiddenParallelEmbedding(nn.Embedding(11, 3), group)(
            torch.tensor([-1, 10])
        ),
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
        ("width", "8 hidden columns over tp=3"),
        ("padding", "padding_idx=1"),
        ("bias", "head of 11 words with a bias"),
        ("word", "from 0 to 11, and there are 11"),
        ("column word", "from -1 to 10, and there are 11"),
    ],
)
def test_what_is_refused(what, told):
    for message, calls in run_ranks(refused, 3, what):
        assert told in message
        assert calls == 0


def outsider(group):
    VocabParallelEmbedding(table(11), dist.new_group([1, 2]))


def test_a_group_that_is_not_the_callers_is_refused():
    with pytest.raises(RankError, match="rank 0 is not in the group"):
        run_ranks(outsider, 3)
