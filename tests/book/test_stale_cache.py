"""An edit in labkit makes every page run again; nothing else does.

Oracle: a counter file that the page's cell appends to.
"""

import pytest

from tests.book.building import NOTEBOOK, build_tiny


@pytest.fixture
def book(tmp_path):
    """A function that builds a page whose one cell notes that it ran; returns how often it ran."""
    runs = tmp_path / "runs.txt"
    package = tmp_path / "labkit" / "comm"
    package.mkdir(parents=True)
    (package / "ring.py").write_text("CHUNKS = 1\n")
    cell = f"```{{code-cell}}\nopen({str(runs)!r}, 'a').write('x');\n```"
    (tmp_path / "index.md").write_text(f"{NOTEBOOK}\n# Title\n\n{cell}\n")

    def build() -> int:
        assert build_tiny(tmp_path, ["myst_nb", "stale_cache"]) == ""
        return len(runs.read_text())

    return build


def test_page_runs_again_only_after_an_edit_of_labkit(book, tmp_path):
    assert book() == 1
    compiled = tmp_path / "labkit" / "comm" / "__pycache__"
    compiled.mkdir()
    (compiled / "ring.pyc").write_text("compiled")
    assert book() == 1
    (tmp_path / "labkit/comm/ring.py").write_text("CHUNKS = 2\n")
    assert book() == 2
    assert book() == 2
    (tmp_path / "labkit/comm/ring.py").rename(tmp_path / "labkit/comm/rings.py")
    assert book() == 3


def test_edit_of_the_page_alone_takes_the_cell_from_the_cache(book, tmp_path):
    assert book() == 1
    page = tmp_path / "index.md"
    page.write_text(page.read_text() + "\nAnother sentence.\n")
    assert book() == 1
