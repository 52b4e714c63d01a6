"""The book can be translated from one source: a build in an invented language shows what cannot.

The invented language puts every message of the English book between ⟦ and ⟧. Promised: that book
builds with warnings as errors, every sentence that a reader sees on it is bracketed, and every
number that the English page shows is there too. Cells come from the execution cache: none runs.
Words in pictures, printed output and alt texts of computed pictures stay English by design; so do
the captions of parts in the sidebar, which come from the table of contents.
"""

import re
import shutil

import pytest
import yaml
from babel.messages.pofile import read_po, write_po
from bs4 import BeautifulSoup

from tests.book.building import ROOT, build_book, build_tiny

LANGUAGE = "eo"  # any code that the theme has words for
KEPT = "pre, code, script, style, .headerlink, .math, .cell_output .output, .cell_output table"
# What the theme and its extensions say, in their own catalogues; titles of works; code's captions.
THEIRS = (
    ".admonition:not([class*=admonition-]) > .admonition-title, .caption-number, .citation, "
    "summary, .code-block-caption, .prev-next-area"
)


@pytest.fixture(scope="module")
def pages(html):
    """Pairs of pages, English and invented, by name."""
    folder = ROOT / "_build" / "pseudo"
    shutil.rmtree(folder, ignore_errors=True)  # no catalogue of an earlier text may remain
    config = write_config(folder)
    output = f"--path-output={folder}"
    build_book(output, f"--config={config}", "--builder=custom", "--custom-builder=gettext")
    translate(folder)
    said = build_book(output, f"--config={config}", "--all")
    assert "Executing notebook" not in said, "the cache was not used"
    built = folder / "_build" / "html"
    names = [p.relative_to(built) for p in (built / "book").rglob("*.html")]
    return {str(name): (parse(html / name), parse(built / name)) for name in names}


def write_config(folder):
    """Write the book's settings with the invented language; return the file."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    config["execute"]["cache"] = str(ROOT / "_build" / ".jupyter_cache")
    local = config["sphinx"]["local_extensions"]
    config["sphinx"]["local_extensions"] = {name: str(ROOT / path) for name, path in local.items()}
    config["sphinx"]["config"] |= {
        "language": LANGUAGE,
        "locale_dirs": [str(folder / "locale")],
        "asset_cache": str(ROOT / "_build" / ".assets"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def translate(folder):
    """Put brackets around every message of every catalogue."""
    for source in (folder / "_build" / "gettext").rglob("*.pot"):
        catalogue = read_po(source.open("rb"))
        for message in catalogue:
            message.string = f"⟦{message.id}⟧" if message.id else message.string
        name = source.relative_to(folder / "_build" / "gettext").with_suffix(".po")
        target = folder / "locale" / LANGUAGE / "LC_MESSAGES" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            write_po(file, catalogue)


def parse(path):
    """Return the article of a page without what stays as it is."""
    article = BeautifulSoup(path.read_text(), "html.parser").select_one("article")
    for kept in article.select(f"{KEPT}, {THEIRS}"):
        kept.decompose()
    return article


def test_table_in_a_box_enters_the_catalogue(tmp_path):
    table = "| here | there |\n|---|---|\n| a worker | a rank |\n"
    (tmp_path / "index.md").write_text(f"# Title\n\n```{{admonition}} Box\n{table}```\n")
    assert build_tiny(tmp_path, ["myst_nb", "translatable"], "gettext") == ""
    messages = [m.id for m in read_po((tmp_path / "_build/gettext/index.pot").open("rb"))]
    assert {"Title", "Box", "here", "there", "a worker", "a rank"} <= set(messages)


def test_every_sentence_is_bracketed(pages):
    bare = {}
    for name, (_, invented) in pages.items():
        text = re.sub(r"⟦[^⟦⟧]*⟧", "", re.sub(r"⟦[^⟦⟧]*⟧", "", invented.get_text()))
        words = [line.strip() for line in text.splitlines() if re.search(r"[^\W\d_]{2}", line)]
        if words:
            bare[name] = words
    assert bare == {}


def test_no_number_is_missing(pages):
    for name, (english, invented) in pages.items():
        assert numbers(invented) == numbers(english), name
    assert any(numbers(english) for english, _ in pages.values())


def numbers(article) -> list[str]:
    return sorted(re.findall(r"\d[\d,.]*", article.get_text()))
