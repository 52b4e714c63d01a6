"""Bytes in, bytes out, in any language."""

import pytest

from labkit.model.tokenizer import BOS, EOS, PAD, VOCAB_SIZE, decode, encode


@pytest.mark.parametrize("text", ["", "To be, or not to be", "张量并行 🙂", "\x00\n"])
def test_round_trip(text):
    assert decode(encode(text)) == text
    assert decode([BOS, *encode(text), EOS, PAD]) == text


def test_specials_follow_the_bytes():
    assert encode(bytes(range(256))) == list(range(256))
    assert sorted((BOS, EOS, PAD)) == list(range(256, VOCAB_SIZE))


def test_half_a_character_does_not_fail():
    assert decode(encode("张")[:2]) == "\ufffd"


@pytest.mark.parametrize("token", [-1, 259])
def test_outside_the_vocabulary(token):
    with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of 259"):
        decode([token])
