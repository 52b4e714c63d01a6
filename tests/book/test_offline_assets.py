"""Formulas and widgets without a network, and a book that is built all the same without npm.

Oracle: the files and script tags of tiny books. The whole book's silence is tested in test_browser.
"""

import os
from pathlib import Path

import pytest

from tests.book.building import EXTENSIONS, ROOT, build_tiny

PAGE = """# Title

$a + b$

```{only} online
This copy needs a network.
```
"""
CACHE = ROOT / "_build" / ".assets"  # filled by the book's build


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A function that builds a one-page book with a given PATH; returns page and warnings."""
    (tmp_path / "index.md").write_text(PAGE)

    def build(path: Path | None = None, **config):
        if path is not None:
            monkeypatch.setenv("PATH", str(path))
        extensions = ["myst_nb", "sphinx_thebe", "offline_assets"]
        warnings = build_tiny(tmp_path, extensions, myst_enable_extensions=["dollarmath"], **config)
        return (tmp_path / "_build/html/index.html").read_text(), warnings

    return build


def test_without_npm_the_book_is_built_and_says_so(book, tmp_path):
    page, warnings = book(path=tmp_path / "no-programs", asset_cache=str(tmp_path / "assets"))
    assert "This copy needs a network." in page
    assert "https://cdn.jsdelivr.net/npm/mathjax" in page
    assert warnings == ""


def test_with_an_npm_that_fails_the_book_is_built_and_says_so(book, tmp_path):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no route to host >&2\nexit 1\n")
    npm.chmod(0o755)
    cache = tmp_path / "assets"
    page, warnings = book(path=Path(f"{tmp_path}{os.pathsep}/bin"), asset_cache=str(cache))
    assert "This copy needs a network." in page
    assert "https://cdn.jsdelivr.net" in page
    assert warnings == ""
    assert not [p for p in cache.iterdir() if p.is_dir()], "nothing half-fetched is taken for whole"


def test_with_packages_in_the_cache_nothing_is_fetched_and_nobody_else_is_named(
    book, tmp_path, html
):
    page, warnings = book(path=tmp_path / "no-programs", asset_cache=str(CACHE))
    assert "This copy needs a network." not in page
    assert "_static/vendor/mathjax/tex-mml-chtml.js" in page
    for tag in page.split("<script")[1:]:
        assert "https://" not in tag.split("</script>")[0]
    vendor = tmp_path / "_build/html/_static/vendor"
    assert (vendor / "mathjax/tex-mml-chtml.js").stat().st_size > 1_000_000
    assert list((vendor / "mathjax/output/chtml/fonts").rglob("*.woff"))
    assert (vendor / "html-manager/embed.js").stat().st_size > 1_000_000
    assert list((vendor / "html-manager").glob("*.woff2"))
    assert warnings == ""


def test_unused_kernel_scripts_are_gone(book, tmp_path, html):
    page, _ = book(asset_cache=str(CACHE))
    assert "<script" in page
    assert "THEBE_JS_URL" not in page
    assert "sphinx-thebe.js" not in page


def test_nothing_of_others_is_in_the_source_tree():
    assert not list(EXTENSIONS.parent.rglob("*.min.js"))
    assert not list((ROOT / "book" / "_static").glob("*.js"))
