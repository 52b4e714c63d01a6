"""The course's model split over tp ranks, with and without sequence parallelism.

Promised: five steps of AdamW on 1, 2 and 4 ranks do what one process does: losses, split logits,
every gradient and every weight, put together from the shards; likewise greedy words. States are
gathered and cut bit for bit. What is sent, and what is refused, is in
test_tensor_parallel_messages.py.
Oracle: the whole model on one process, float64.
"""

import pytest
import torch

from labkit.comm.mesh import Mesh
from labkit.comm.split import Split
from labkit.compose.tensor_parallel import gather_state, shard_state, tensor_parallel
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.attention import KVCache
from labkit.model.config import ModelConfig
from labkit.model.transformer import IGNORE, Transformer, initialise, next_token_loss

# Sums of some hundred terms of unit scale in float64: rounding stays below 1e-13.
TOL = dict(rtol=0, atol=1e-12)
STEPS, LAYERS, WORDS = 5, 2, 259


def config(**changes):
    shape = dict(
        num_layers=LAYERS,
        hidden_size=32,
        intermediate_size=24,
        num_heads=8,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=WORDS,
        max_seq_len=16,
    )
    return ModelConfig(**shape | changes)


def whole(**changes):
    """A model whose gains and biases are not all alike."""
    model = Transformer(config(**changes)).double()
    generator = torch.Generator().manual_seed(0)
    initialise(model, generator)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(1.0, 0.1, generator=generator)
        else:
            parameter.data.mul_(10.0)  # std 0.2: attention and softmax are far from uniform
    return model


def batch(step=0):
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(0, WORDS, (2, 9), generator=generator)
    words[0, :2] = torch.tensor([258, 0])
    targets = words[:, 1:].clone()
    targets[1, 5:] = IGNORE
    return words[:, :-1], targets  # [B, T]


def train(model, loss):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(model, *batch(step))
        value.backward()
        optimizer.step()
        seen.append((value.detach(), {n: p.grad for n, p in model.named_parameters()}))
    return seen, {n: p.detach() for n, p in model.named_parameters()}, model(batch()[0]).detach()


def five_steps(group, sequence, changes):
    model = tensor_parallel(whole(**changes), group, sequence=sequence)
    return *train(model, lambda model, x, y: model.loss(x, y)), model.layout()


MODELS = {
    "llama": {},
    "qwen": dict(tied=True, qk_norm=True, attention_bias=True),
    "multi-query": dict(num_kv_heads=1),
}


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_five_steps_match_one_process(kind, world_size, sequence):
    expected, weights, logits = train(
        whole(**MODELS[kind]), lambda model, x, y: next_token_loss(model(x), y)
    )
    ranks = run_ranks(five_steps, world_size, sequence, MODELS[kind])
    layout = ranks[0][3]
    for step, (loss, grads) in enumerate(expected):
        for seen, *_ in ranks:
            torch.testing.assert_close(seen[step][0], loss, **TOL)
        got = gather_state([seen[step][1] for seen, *_ in ranks], layout)
        assert got.keys() == grads.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(got[name], grad, **TOL, msg=lambda m, n=name: f"{n}: {m}")
    got = gather_state([rank[1] for rank in ranks], layout)
    for name, weight in weights.items():
        torch.testing.assert_close(got[name], weight, **TOL)
    got = torch.cat([rank[2] for rank in ranks], -1)  # [B, T, V']
    torch.testing.assert_close(got[..., :WORDS], logits, **TOL)
    assert (got[..., WORDS:] == float("-inf")).all()


def greedy(group, sequence):
    """Twelve words, with a cache, and without."""
    model = tensor_parallel(whole(), group)
    words, cache = batch()[0][:1, :3], KVCache(LAYERS)
    written = [model.likeliest(words, cache)[:, -1:]]
    for _ in range(11):
        written.append(model.likeliest(written[-1], cache)[:, -1:])
    again = tensor_parallel(whole(), group, sequence=sequence)
    return torch.cat(written, 1), again.likeliest(batch()[0])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_greedy_words_are_those_of_one_process(world_size):
    model, words = whole(), batch()[0][:1, :3]
    with torch.no_grad():
        for _ in range(12):
            words = torch.cat([words, model(words)[:, -1:].argmax(-1)], 1)
        likeliest = model(batch()[0]).argmax(-1)
    for written, again in run_ranks(greedy, world_size, True):
        assert torch.equal(written, words[:, 3:])
        assert torch.equal(again, likeliest)


def cut_and_gather(group, changes):
    """On this rank alone, for any world: shards are plain tensors."""
    model = tensor_parallel(whole(**changes), group)
    return {n: p.detach() for n, p in model.named_parameters()}, model.layout()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_states_come_back_bit_for_bit(kind, world_size):
    state = {n: p.detach() for n, p in whole(**MODELS[kind]).named_parameters()}
    ranks = run_ranks(cut_and_gather, world_size, MODELS[kind])
    layout = ranks[0][1]
    assert all(other == layout for _, other in ranks)
    for rank, (shard, _) in enumerate(ranks):
        again = shard_state(state, layout, rank, world_size)
        assert again.keys() == shard.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in shard.items())
    gathered = gather_state([shard for shard, _ in ranks], layout)
    assert gathered.keys() == state.keys()
    assert all(torch.equal(gathered[name], tensor) for name, tensor in state.items())


def test_states_with_other_names_are_refused():
    layout = {"a": Split(size=4, parts=2), "b": Split(size=3)}
    full = {"a": torch.ones(4), "b": torch.ones(3)}
    shards = [shard_state(full, layout, rank, 2) for rank in range(2)]
    with pytest.raises(ValueError, match=r"the state has 1 tensors, the layout 2.* in b"):
        shard_state({"a": full["a"]}, layout, 0, 2)
    with pytest.raises(ValueError, match=r"rank 1 has 3 tensors, the layout 2.* in c"):
        gather_state([shards[0], shards[1] | {"c": full["a"]}], layout)
    with pytest.raises(ValueError, match="ranks 0 and 1"):
        gather_state([shards[0], shards[1] | {"b": torch.zeros(3)}], layout)


def on_a_mesh(group):
    """Two replicas of tp 2 with more ranks than KV heads, on groups that are not the world."""
    mesh = Mesh(dp=2, tp=2)
    model = tensor_parallel(whole(num_kv_heads=1), mesh.group("tp"))
    x, y = batch(mesh.coordinate("dp"))
    with CommLedger() as ledger:
        loss = model.loss(x, y)
        loss.backward()
    return loss, {op.axis for op in ledger.ops}


def test_groups_that_are_not_the_world():
    ranks = run_ranks(on_a_mesh, 4)
    for rank, (loss, axes) in enumerate(ranks):
        x, y = batch(rank // 2)
        torch.testing.assert_close(loss, next_token_loss(whole(num_kv_heads=1)(x), y), **TOL)
        assert axes == {"tp", "kv"}


def in_bfloat16(group, sequence):
    model = tensor_parallel(whole().float(), group, sequence=sequence)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(*batch())
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters()}, model.layout()


@pytest.mark.parametrize("sequence", [False, True])
def test_autocast_reaches_every_product(sequence):
    """The plumbing only: bfloat16 is no proof of numbers, 0.4 % a product."""
    model = whole().float()
    next_token_loss(model(batch()[0]), batch()[1]).backward()
    ranks = run_ranks(in_bfloat16, 2, sequence)
    got = gather_state([grads for _, grads, _ in ranks], ranks[0][2])
    for name, parameter in model.named_parameters():
        assert got[name].dtype == torch.float32
        assert (got[name] - parameter.grad).norm() < 0.1 * parameter.grad.norm(), name
