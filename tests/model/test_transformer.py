"""The model: causal, the same with and without a cache, and its attention as defined.

Oracles: attention written out in float64; the model itself on one long input. What `transformers`
gives for the same weights is compared in tests/peers.
"""

from dataclasses import replace

import pytest
import torch

from labkit.model.attention import KVCache, causal_attention
from labkit.model.config import PRESETS
from labkit.model.transformer import IGNORE, Transformer, initialise, next_token_loss

NANO = PRESETS["nano"]


def model_of(config=NANO):
    model = Transformer(config).double()
    initialise(model, torch.Generator().manual_seed(0))
    for parameter in model.parameters():  # std 0.02 gives nearly flat attention: a weak test
        parameter.data *= 1 if parameter.dim() == 1 else 10
    return model


def tokens_of(*shape):
    return torch.randint(0, 259, shape, generator=torch.Generator().manual_seed(1))


def attention_by_definition(q, k, v):
    (T, H), S = (q.shape[2], q.shape[1]), k.shape[2]
    k, v = (x.repeat_interleave(H // k.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.arange(S) > torch.arange(T)[:, None] + (S - T)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


@pytest.mark.parametrize(("T", "S"), [(1, 1), (5, 5), (1, 5), (2, 5)])
@pytest.mark.parametrize(("H", "K"), [(4, 4), (4, 2), (6, 3), (5, 1)])
def test_attention_and_its_gradients(T, S, H, K):
    """The queries are the tail of the keys; heads are grouped in order."""
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, n, L, 8, generator=g).double() for n, L in ((H, T), (K, S), (K, S))]
    results = []
    for fn in (causal_attention, attention_by_definition):
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        o = fn(q, k, v)
        o.backward(torch.ones_like(o).cumsum(-1))
        results.append((o.detach(), q.grad, k.grad, v.grad))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_a_token_does_not_see_what_follows():
    model, tokens = model_of(), tokens_of(1, 9)
    changed = tokens.clone()
    changed[0, 5] += 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-6  # and does see what precedes


@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 5], [6, 1, 2]])
def test_reading_in_pieces_gives_the_same_logits(pieces):
    model, tokens = model_of(), tokens_of(2, 9)
    cache = KVCache(NANO.num_layers)
    read = torch.cat([model(piece, cache) for piece in tokens.split(pieces, 1)], dim=1)
    assert cache.length == 9
    torch.testing.assert_close(
        read, model(tokens), rtol=0, atol=1e-10
    )  # cos and sin are float32 alike


def test_every_parameter_learns():
    model, tokens = model_of(replace(NANO, qk_norm=True, attention_bias=True)), tokens_of(2, 7)
    next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_tied_embeddings_are_one_parameter():
    model = model_of(replace(NANO, tied=True))
    assert not hasattr(model, "lm_head")
    torch.testing.assert_close(
        model.logits(torch.eye(64).double()[None]), model.embed_tokens.weight.T[None]
    )


def test_targets_to_ignore_do_not_count():
    logits = torch.randn(1, 3, 259, generator=torch.Generator().manual_seed(0)).double()
    alone = next_token_loss(logits[:, :1], torch.tensor([[7]]))
    ignored = next_token_loss(logits, torch.tensor([[7, IGNORE, IGNORE]]))
    assert torch.equal(alone, ignored)


def test_initial_loss_is_that_of_a_guess():
    model = Transformer(NANO)
    initialise(model, torch.Generator().manual_seed(0))
    tokens = tokens_of(4, 65)
    loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    assert abs(loss.item() - torch.tensor(259.0).log().item()) < 0.02


def test_too_many_tokens_name_both_numbers():
    with pytest.raises(ValueError, match="513 tokens, but max_seq_len is 512"):
        model_of()(tokens_of(1, 513))
