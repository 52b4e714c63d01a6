"""Numbers in sentences: what a cell computed, or a record holds, is what the reader sees.

Oracle: the rendered text of tiny books. Also promised: a page taken from the execution cache has
its numbers, a changed value is seen, a translated sentence has them, a missing one is a warning.
"""

import json

import pytest

from tests.book.building import NOTEBOOK, build_tiny

EXTENSIONS = ["myst_nb", "numbers_role"]
CELL = """
```{code-cell}
from labkit.viz.numbers import numbers
numbers(ring_bytes=1536000, share=0.25, name="ring")
```
"""


@pytest.fixture
def book(tmp_path):
    """A function that writes a page and builds; it returns the page's text and the warnings."""

    def build(sentence, cell=CELL, **config):
        (tmp_path / "index.md").write_text(f"{NOTEBOOK}\n# Title\n{cell}\n{sentence}\n")
        warnings = build_tiny(tmp_path, EXTENSIONS, **config)
        return (tmp_path / "_build/html/index.html").read_text(), warnings

    return build


def test_value_of_a_cell_is_formatted_and_the_cell_shows_nothing(book):
    page, warnings = book(
        "A {num}`name` of {num}`ring_bytes:,` bytes, {num}`share:.0%`, {num}`share`."
    )
    assert "A ring of 1,536,000 bytes, 25%, 0.25." in page
    assert "cell_input" in page
    assert "cell_output" not in page
    assert warnings == ""


def test_page_from_the_cache_has_its_numbers(book, tmp_path):
    count = tmp_path / "runs.txt"
    cell = CELL.replace("numbers(", f"open({str(count)!r}, 'a').write('x');\nnumbers(", 1)
    first, _ = book("One {num}`ring_bytes`.", cell)
    second, warnings = book("Two {num}`ring_bytes`.", cell)  # same cells, another sentence
    assert "One 1536000." in first
    assert "Two 1536000." in second
    assert count.read_text() == "x", "executed once"
    assert warnings == ""


def test_changed_value_is_seen_and_an_old_name_is_forgotten(book):
    book("It is {num}`ring_bytes`.")
    page, _ = book("It is {num}`ring_bytes`.", CELL.replace("1536000", "7"))
    assert "It is 7." in page
    page, warnings = book("It is {num}`ring_bytes`.", "")
    assert "1536000" not in page
    assert "'ring_bytes' is not among []" in warnings


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        (
            "{num}`ring_byte`",
            r"'ring_byte' is not among ['name', 'ring_bytes', 'share'] (ring_byte)",
        ),
        ("{num}`name:.2f`", "Unknown format code 'f'"),
        ("{num}`results/nothing:x`", "No such file"),
        ("{num}`two words`", "cannot read 'two words'"),
    ],
)
def test_what_cannot_be_filled_is_a_warning_at_its_line(book, sentence, told):
    page, warnings = book(sentence)
    assert told in warnings
    assert "index.md" in warnings
    assert "?" in page


def test_record_is_read_and_followed(book, tmp_path):
    records = tmp_path / "book" / "results"
    records.mkdir(parents=True)
    (records / "launch.json").write_text(json.dumps({"seconds": {"median": 0.1234}}))
    page, warnings = book("{num}`results/launch:seconds.median:.2f` s", "")
    assert "0.12 s" in page
    assert warnings == ""
    (records / "launch.json").write_text(json.dumps({"seconds": {"median": 0.9}}))
    page = (tmp_path / "_build/html/index.html").read_text()
    build_tiny(tmp_path, EXTENSIONS)  # the page did not change; its record did
    assert "0.90 s" in (tmp_path / "_build/html/index.html").read_text()


def test_a_field_whose_name_has_a_plus_and_a_comma(book, tmp_path):
    records = tmp_path / "book" / "results"
    records.mkdir(parents=True)
    (records / "two.json").write_text(json.dumps({"a+b, both ways": {"median": 0.5}}))
    page, warnings = book("{num}`results/two:a+b, both ways.median:.1f` s", "")
    assert "0.5 s" in page
    assert warnings == ""


def test_translated_sentence_has_its_numbers(book, tmp_path):
    messages = tmp_path / "locale/zh_CN/LC_MESSAGES"
    messages.mkdir(parents=True)
    (messages / "index.po").write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        'msgid "All of {num}`ring_bytes:,` bytes."\nmsgstr "共 {num}`ring_bytes:,` 字节。"\n'
    )
    page, warnings = book(
        "All of {num}`ring_bytes:,` bytes.", language="zh_CN", locale_dirs=["locale"]
    )
    assert "共 1,536,000 字节。" in page
    assert warnings == ""
