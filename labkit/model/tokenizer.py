"""Bytes are the tokens: 256 values and three specials, for any language, no vocabulary file."""

from collections.abc import Iterable

BOS, EOS, PAD = 256, 257, 258  # begin of text, end of text, padding
VOCAB_SIZE = 259


def encode(text: str | bytes) -> list[int]:
    """The UTF-8 bytes of a text as token numbers; specials are added by the caller."""
    return list(text.encode() if isinstance(text, str) else text)


def decode(tokens: Iterable[int]) -> str:
    """Text of the tokens. Specials vanish; bytes that are no UTF-8 become U+FFFD.

    Raises:
        ValueError: for a number outside the vocabulary.
    """
    tokens = list(tokens)
    for token in tokens:
        if not 0 <= token < VOCAB_SIZE:
            raise ValueError(f"token {token} is outside the vocabulary of {VOCAB_SIZE}")
    return bytes(token for token in tokens if token < BOS).decode(errors="replace")
