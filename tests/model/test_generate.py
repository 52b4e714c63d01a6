"""Generation: greedy is arg-max of the whole context, cold is greedy, seeds repeat the draw."""

from dataclasses import replace

import pytest
import torch

from labkit.model.config import PRESETS
from labkit.model.generate import _draw, generate
from labkit.model.tokenizer import BOS, EOS, PAD, encode
from labkit.model.transformer import Transformer, initialise


@pytest.fixture(scope="module")
def model():
    net = Transformer(replace(PRESETS["nano"], max_seq_len=16))
    initialise(net, torch.Generator().manual_seed(0))
    for parameter in net.parameters():
        parameter.data *= 1 if parameter.dim() == 1 else 5
    return net


def greedy_without_cache(net, prompt, count):
    tokens = [BOS, *prompt]
    for _ in range(count):
        logits = net(torch.tensor([tokens]))[0, -1]
        logits[[BOS, PAD]] = float("-inf")
        tokens.append(int(logits.argmax()))
        if tokens[-1] == EOS:
            return tokens[len(prompt) + 1 : -1]
    return tokens[len(prompt) + 1 :]


def test_greedy_equals_reading_everything_again(model):
    want = greedy_without_cache(model, encode("To be"), 10)
    assert list(generate(model, encode("To be"), 10, temperature=0)) == want
    assert list(generate(model, encode("To be"), 10, temperature=1e-6)) == want


def test_a_mixture_with_a_cache_equals_reading_everything_again():
    net = Transformer(replace(PRESETS["nano-moe"], max_seq_len=16)).double()
    generator = torch.Generator().manual_seed(0)
    initialise(net, generator)
    for parameter in net.parameters():
        parameter.data *= 1 if parameter.dim() == 1 else 5
    for layer in net.layers:
        layer.mlp.bias.normal_(0, 0.1, generator=generator)
    want = greedy_without_cache(net, encode("To be"), 10)
    assert list(generate(net, encode("To be"), 10, temperature=0)) == want
    assert len(set(want)) > 1
    assert not any(layer.mlp.counts.any() for layer in net.layers)


def test_a_seed_repeats_the_draw(model):
    one, two, other = (
        list(generate(model, [65], 12, generator=torch.Generator().manual_seed(s)))
        for s in (0, 0, 1)
    )
    assert one == two != other


def test_longer_than_the_model_reads(model):
    tokens = list(generate(model, encode("x" * 40), 40, generator=torch.Generator().manual_seed(0)))
    assert len(tokens) == 40
    assert not {BOS, PAD} & set(tokens)


def test_end_of_text_ends(model):
    class Ends(torch.nn.Module):
        config = model.config

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, cache):
            return torch.nn.functional.one_hot(torch.full_like(tokens, EOS), 259).float() * 50

    assert list(generate(Ends(), [65], 5)) == []


def test_the_lowest_of_equals_is_taken():
    logits = torch.tensor([0.0, 2.0, 2.0])
    assert _draw(logits, 0.0, None) == 1


def test_bad_numbers(model):
    with pytest.raises(ValueError, match="temperature -1"):
        next(generate(model, [], 1, temperature=-1))
