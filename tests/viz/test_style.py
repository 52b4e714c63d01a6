"""A picture can be read in grey, and every word in it comes from viz.words. Oracle: the source."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

import labkit.viz
from labkit.viz import style
from labkit.viz.words import WORDS, bytes_in_words, seconds_in_words, word

FILES = sorted(Path(labkit.viz.__file__).parent.glob("*.py"))
# Calls that put their text into a picture.
TEXT_CALLS = {"set_title", "set_xlabel", "set_ylabel", "text", "annotate", "suptitle", "put_word"}


def luminance(colour):
    return sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(colour), strict=True))


def test_the_three_meanings_differ_in_grey():
    levels = sorted(luminance(c) for c in (style.COMPUTE, style.COMMUNICATION, style.IDLE))
    assert min(b - a for a, b in pairwise(levels)) >= 0.2


def literals(node):
    """Strings with a letter, outside of word(...) and of formats."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "word":
        return
    if isinstance(node, ast.Constant) and any(map(str.isalpha, str(node.value))):
        yield node.value
    for child in ast.iter_child_nodes(node):
        if not isinstance(node, ast.FormattedValue) or child is node.value:
            yield from literals(child)


def unlisted_words(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            shown = [k.value for k in node.keywords if k.arg in ("label", "s", "text")]
            for value in [*shown, *(node.args if name in TEXT_CALLS else [])]:
                yield from literals(value)


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_no_word_in_a_picture_but_through_the_table(path):
    assert list(unlisted_words(path.read_text())) == []


def test_the_search_for_words_finds_one():
    assert list(unlisted_words('axes.set_title("Ring")\naxes.plot(x, label="tree")')) == [
        "Ring",
        "tree",
    ]
    assert list(unlisted_words('axes.set_title(word("ring.rank", rank=3))')) == []


@pytest.mark.parametrize("path", FILES, ids=lambda f: f.stem)
def test_no_pyplot_and_no_show(path):
    text = path.read_text()
    assert "pyplot" not in text.replace("no pyplot", "")
    assert ".show()" not in text


def test_every_key_that_is_asked_for_exists():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "word":
                key = node.args[0]
                if isinstance(key, ast.Constant):
                    assert key.value in WORDS, f"{path.name}: {key.value}"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1e3, "1 kB"), (1.05e6, "1.05 MB"), (2e9, "2 GB")],
)
def test_bytes_in_words(num_bytes, text):
    assert bytes_in_words(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2, "2 s"), (0.0125, "12.5 ms"), (3e-6, "3 µs"), (0, "0 µs")]
)
def test_seconds_in_words(seconds, text):
    assert seconds_in_words(seconds) == text


def test_words_take_values():
    assert word("ring.rank", rank=3) == "rank 3"
    with pytest.raises(KeyError):
        word("ring.nothing")
