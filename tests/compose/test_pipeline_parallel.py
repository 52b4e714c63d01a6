"""The course's transformer in stages: gradients, loss and training steps of the whole model.

Oracle: the whole Transformer in one process, float64. Promised for tied and untied heads, uneven
layers, token counts that differ between micro-batches, and several runs before one step.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.compose.pipeline_parallel import pipeline_stages, sum_tied_gradients
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import ModelConfig
from labkit.model.transformer import IGNORE, Transformer, initialise, next_token_loss
from labkit.parallel.data import NaiveDataParallel
from labkit.parallel.pipeline import (
    gpipe,
    interleaved,
    one_f_one_b,
    run_schedule,
    zero_bubble,
    zero_bubble_v,
)

# Sums of at most a few hundred terms of unit scale in float64.
TOL = dict(rtol=0, atol=1e-12)
ROWS, LENGTH, WIDTH, WORDS = 8, 6, 8, 13


def transformer(num_layers, tied, seed=0):
    config = ModelConfig(
        num_layers=num_layers,
        hidden_size=WIDTH,
        intermediate_size=12,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=WORDS,
        max_seq_len=LENGTH,
        tied=tied,
    )
    model = Transformer(config).double()
    initialise(model, torch.Generator().manual_seed(seed))
    return model


def words(seed=0):
    """Tokens and targets; micro-batches score different numbers of tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)
    targets = drawn[:, 1:].clone()
    targets[:3, 2:] = IGNORE
    return drawn[:, :-1], targets  # [B, T] each


def sum_over_tokens(logits, targets):
    return next_token_loss(logits, targets, reduction="sum")


def parameters(stages):
    """By their names in the whole model; a weight that two stages share comes once."""
    module = nn.ModuleList(stage.module for stage in stages)
    return {name.split(".", 1)[1]: p for name, p in module.named_parameters()}


def run(group, schedule, stages, batch, num_tokens):
    return run_schedule(
        schedule, stages, *batch, group, loss_fn=sum_over_tokens, loss_divisor=num_tokens
    )


def one_step(group, schedule, num_layers, tied):
    batch = words()
    b = ROWS // schedule.num_micro_batches
    stages = pipeline_stages(transformer(num_layers, tied), schedule, group, (b, LENGTH))
    result = run(group, schedule, stages, batch, int((batch[1] != IGNORE).sum()))
    with CommLedger() as ledger:
        sum_tied_gradients(stages, schedule, group)
    grads = {name: p.grad for name, p in parameters(stages).items()}
    return grads, result.loss, ledger.bytes_sent()


def serial_step(num_layers, tied):
    model = transformer(num_layers, tied)
    x, targets = words()
    loss = next_token_loss(model(x), targets)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}, loss.detach()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("schedule", "num_layers"),
    [
        (one_f_one_b(1, 2), 2),
        (gpipe(2, 4), 3),
        (one_f_one_b(3, 4), 7),
        (interleaved(2, 4), 5),
        (zero_bubble(4, 8), 4),
        (zero_bubble_v(2, 4), 7),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_step_matches_the_whole_model(schedule, num_layers, tied):
    ranks = run_ranks(one_step, schedule.num_ranks, schedule, num_layers, tied)
    expected, loss = serial_step(num_layers, tied)
    assert {name for grads, _, _ in ranks for name in grads} == set(expected)
    for grads, _, _ in ranks:
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], **TOL)
    first, last = schedule.rank_of(0), schedule.rank_of(schedule.num_stages - 1)
    torch.testing.assert_close(ranks[last][1], loss, **TOL)
    for rank, (_, _, num_bytes) in enumerate(ranks):
        has_a_copy = tied and first != last and rank in (first, last)
        assert num_bytes == (8 * WORDS * WIDTH if has_a_copy else 0)
    if tied and first != last:
        ends = ranks[first][0]["embed_tokens.weight"], ranks[last][0]["embed_tokens.weight"]
        assert torch.equal(*ends)


OPTIMIZERS = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-2),
}


def train(group, schedule, optimizer, num_steps, summed=True):
    b = ROWS // schedule.num_micro_batches
    stages = pipeline_stages(transformer(3, True), schedule, group, (b, LENGTH))
    weights = parameters(stages)
    optimizer = OPTIMIZERS[optimizer](weights.values())
    for step in range(num_steps):
        batch = words(step)
        run(group, schedule, stages, batch, int((batch[1] != IGNORE).sum()))
        if summed:
            sum_tied_gradients(stages, schedule, group)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in weights.items()}


def serial_train(optimizer, num_steps):
    model = transformer(3, True)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for step in range(num_steps):
        x, targets = words(step)
        next_token_loss(model(x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("schedule", [one_f_one_b(2, 4), zero_bubble(3, 2)], ids=lambda s: s.name)
def test_tied_copies_stay_equal_over_20_steps(schedule, optimizer):
    """P1: both copies bitwise equal, and the weight of the whole model."""
    ranks = run_ranks(train, schedule.num_ranks, schedule, optimizer, 20)
    expected = serial_train(optimizer, 20)
    assert torch.equal(ranks[0]["embed_tokens.weight"], ranks[-1]["embed_tokens.weight"])
    for weights in ranks:
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-9, atol=1e-11)


def test_copies_that_are_not_summed_drift():
    ranks = run_ranks(train, 2, one_f_one_b(2, 4), "momentum", 2, False)
    expected = serial_train("momentum", 2)["embed_tokens.weight"]
    for weights in ranks:
        assert (weights["embed_tokens.weight"] - expected).abs().max() > 1e-4


def accumulate(group, schedule, num_runs):
    b = ROWS // schedule.num_micro_batches
    stages = pipeline_stages(transformer(3, True), schedule, group, (b, LENGTH))
    batches = [words(seed) for seed in range(num_runs)]
    num_tokens = sum(int((targets != IGNORE).sum()) for _, targets in batches)
    for batch in batches:
        run(group, schedule, stages, batch, num_tokens)
    sum_tied_gradients(stages, schedule, group)
    return {name: p.grad for name, p in parameters(stages).items()}


@pytest.mark.parametrize("num_runs", [1, 3])
@pytest.mark.parametrize("num_micro_batches", [2, 4])
def test_runs_before_one_step_are_scaled_once(num_micro_batches, num_runs):
    """P2: the mean over all tokens of all micro-batches of all runs."""
    model = transformer(3, True)
    batches = [words(seed) for seed in range(num_runs)]
    x, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    next_token_loss(model(x), targets).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for grads in run_ranks(accumulate, 2, one_f_one_b(2, num_micro_batches), num_runs):
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], **TOL)


def replicas(group, num_micro_batches):
    """Two pipelines of two ranks, each with half of the rows."""
    mesh = Mesh(dp=2, pp=2)
    schedule = one_f_one_b(2, num_micro_batches)
    stages = pipeline_stages(
        transformer(3, True), schedule, mesh.group("pp"), (ROWS // 2 // num_micro_batches, LENGTH)
    )
    replica = NaiveDataParallel(stages[0].module, mesh.group("dp"))
    x, targets = (half.chunk(2)[dist.get_rank(mesh.group("dp"))] for half in words())
    run(mesh.group("pp"), schedule, stages, (x, targets), 1)
    replica.finish(num_tokens=int((targets != IGNORE).sum()))
    sum_tied_gradients(stages, schedule, mesh.group("pp"))
    return {name: p.grad for name, p in parameters(stages).items()}


@pytest.mark.parametrize("num_micro_batches", [2, 4])
def test_two_pipelines_share_a_batch(num_micro_batches):
    """P2 with data parallelism: the only division is that by all tokens, after the last run."""
    expected, _ = serial_step(3, True)
    for grads in run_ranks(replicas, 4, num_micro_batches):
        for name, grad in grads.items():
            torch.testing.assert_close(grad, expected[name], **TOL)


def errors(group):
    told = []
    for model, schedule, tokens in (
        (transformer(2, False), gpipe(3, 2), (4, LENGTH)),
        (transformer(3, False), gpipe(3, 2), (4, LENGTH + 1)),
    ):
        with pytest.raises(ValueError, match=r"2 layers over 3|7 tokens") as caught:
            pipeline_stages(copy.deepcopy(model), schedule, group, tokens)
        told.append(str(caught.value))
    return told


def test_errors_name_both_numbers():
    for layers, length in run_ranks(errors, 3):
        assert "2 layers over 3 stages" in layers
        assert f"{LENGTH + 1} tokens, but max_seq_len is {LENGTH}" in length
