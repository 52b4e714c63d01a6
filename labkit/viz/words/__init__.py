"""Every word inside a picture, and the alt texts: one table a part of the book, to be translated.

A picture asks for a word by its key: word("axis.seconds"), word("ring.step", step=1, steps=6).
Numbers enter through the braces: {n} is a count, {text} a value with its unit.
"""

from labkit.viz.words.chapter07 import CHAPTER07
from labkit.viz.words.chapter08 import CHAPTER08
from labkit.viz.words.common import COMMON
from labkit.viz.words.part1 import PART1
from labkit.viz.words.part2 import PART2

WORDS = COMMON | PART1 | PART2 | CHAPTER07 | CHAPTER08

_BYTES = (
    (1e9, "unit.gigabytes"),
    (1e6, "unit.megabytes"),
    (1e3, "unit.kilobytes"),
    (1, "unit.bytes"),
)
_SECONDS = ((1, "unit.seconds"), (1e-3, "unit.milliseconds"), (1e-6, "unit.microseconds"))


def word(key: str, **values: object) -> str:
    """The words under a key, with values in their braces."""
    return WORDS[key].format(**values)


def bytes_in_words(num_bytes: float) -> str:
    """Three significant digits and the largest unit that leaves at least 1: "1.05 MB"."""
    return _in_words(num_bytes, _BYTES)


def seconds_in_words(seconds: float) -> str:
    """Three significant digits and the largest unit that leaves at least 1: "12.5 ms"."""
    return _in_words(seconds, _SECONDS)


def _in_words(value: float, units: tuple[tuple[float, str], ...]) -> str:
    scale, key = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
    return word(key, n=f"{value / scale:.3g}")
