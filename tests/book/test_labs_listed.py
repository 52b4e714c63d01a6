"""The directive {labs}: each notebook that learners complete is described and can be downloaded.

Oracle: the rendered text of tiny books, and the folder labs itself for the whole one. Also
promised: a new notebook appears although no page changed, and no solution leaves the repository.
"""

import json
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tests.book.building import ROOT, build_tiny

LABS = sorted((ROOT / "labs").glob("*.ipynb"))
TITLE = "# Lab {number}: A ring\n\n**Goal.** Build\na ring.\n\nMore text."


def put(folder: Path, number: str) -> bytes:
    """Write a lab of two exercises; return its bytes."""
    graded = [{"check": f"lab{number}.{name}", "nbgrader": {"points": 2.0}} for name in "ab"]
    cells = [{"cell_type": "markdown", "metadata": {}, "source": [TITLE.format(number=number)]}]
    cells += [{"cell_type": "code", "metadata": told, "source": []} for told in graded]
    path = folder / "labs" / f"lab{number}_ring.ipynb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))
    return path.read_bytes()


@pytest.fixture
def built(tmp_path):
    """A function that builds one page with a directive; it returns the page's text, parsed."""

    def build(directive: str) -> BeautifulSoup:
        page = f"# Labs of the course\n\n```{{labs}}{directive}\n```\n"
        index = tmp_path / "index.md"
        if not index.exists() or index.read_text() != page:  # an unchanged page keeps its time
            index.write_text(page)
        (tmp_path / "book" / "part1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "book/part1/07_ring.md").write_text("---\norphan: true\n---\n# The ring\n")
        (tmp_path / "book/labs.md").write_text("---\norphan: true\n---\n# Labs\n")
        options = {
            "myst_enable_extensions": ["colon_fence"],
            "exclude_patterns": ["_build", "labs"],
        }
        assert build_tiny(tmp_path, ["myst_nb", "labs_listed"], **options) == ""
        return BeautifulSoup((tmp_path / "_build/html/index.html").read_text(), "html.parser")

    return build


def test_every_lab_is_a_section_with_its_download(built, tmp_path):
    given = put(tmp_path, "07")
    page = built("")
    (section,) = page.select("section section")
    words = " ".join(section.get_text().split())
    assert "Lab 07: A ring" in words
    assert "Goal. Build a ring. 2 exercises, 4 points. Read first: The ring." in words
    link = section.select_one("a.download")["href"]
    assert (tmp_path / "_build/html" / link).read_bytes() == given
    put(tmp_path, "08")  # no page changed
    again = built("")
    assert len(again.select("a.download")) == 2
    assert "Read first: chapter 8." in " ".join(again.get_text().split())


def test_a_chapter_shows_its_lab_once_there_is_one(built, tmp_path):
    put(tmp_path, "08")
    assert built(" 07").select("a.download, .lab") == []
    put(tmp_path, "07")
    (link,) = built(" 07").select(".lab a.download")
    assert link["href"].endswith("lab07_ring.ipynb")


def test_the_books_links_give_the_notebooks_byte_for_byte(html):
    page = html / "book" / "labs.html"
    links = BeautifulSoup(page.read_text(), "html.parser").select("a.download[href]")
    given = {Path(a["href"]).name: (page.parent / a["href"]).read_bytes() for a in links}
    assert given == {path.name: path.read_bytes() for path in LABS}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_the_chapter_of_a_lab_links_to_it(path, html):
    (chapter,) = (html / "book").glob(f"part*/{path.stem[3:5]}_*.html")
    links = BeautifulSoup(chapter.read_text(), "html.parser").select(".lab a.download")
    assert [Path(a["href"]).name for a in links] == [path.name]


def test_no_solution_is_in_the_build(html):
    """Neither a file of it nor its text, which a learner's notebook does not have."""
    notebooks = [path for path in html.rglob("*.ipynb") if path.name.startswith("lab")]
    assert sorted({path.name for path in notebooks}) == [path.name for path in LABS]
    assert {path.read_bytes() for path in notebooks} == {path.read_bytes() for path in LABS}
    assert [p for p in html.rglob("*") if "solutions" in p.parts or "masters" in p.parts] == []
