"""Bits a byte: uniform is log2 of the vocabulary, every byte counts once, xz is xz."""

import math
import shutil
import subprocess

import pytest
import torch

from labkit.model.config import PRESETS
from labkit.model.transformer import IGNORE, Transformer, initialise
from labkit.train.evaluate import _windows, bits_per_byte, xz_bits_per_byte


def test_a_model_that_knows_nothing_needs_log2_of_the_vocabulary():
    model = Transformer(PRESETS["nano"])
    model.lm_head.weight.data.zero_()
    works = {"a": bytes(range(256)) * 5, "b": b"x"}
    assert bits_per_byte(model, works) == pytest.approx(math.log2(259), rel=1e-6)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 13, 14, 40])
def test_every_byte_is_scored_once_with_its_context(length):
    text = bytes(range(length))
    scored = {}
    for inputs, targets in _windows(text, length=8, context=2, batch_size=3):
        for x, y in zip(inputs, targets, strict=True):
            for t, target in enumerate(y.tolist()):
                if target != IGNORE:
                    assert target not in scored
                    scored[target] = t
                    assert x[t] == (target - 1 if target else 256)
    assert sorted(scored) == list(range(length))
    assert all(t >= min(2, target) for target, t in scored.items())


def test_equals_one_long_reading_where_the_text_fits():
    model = Transformer(PRESETS["nano"]).double()
    initialise(model, torch.Generator().manual_seed(0))
    text = b"O, speak again, bright angel"
    tokens = torch.tensor([[256, *text]])
    logp = model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])
    want = -logp.sum().item() / math.log(2) / len(text)
    assert bits_per_byte(model, {"romeo": text}) == pytest.approx(want, rel=1e-12)


def test_xz_is_what_the_command_gives(tmp_path):
    if shutil.which("xz") is None:
        pytest.skip("the xz command is not installed")
    text = b"It was the nightingale, and not the lark. " * 99
    out = subprocess.run(["xz", "-9", "-c"], input=text, stdout=subprocess.PIPE, check=True).stdout
    assert xz_bits_per_byte({"a": text[:50], "b": text[50:]}) == 8 * len(out) / len(text)
