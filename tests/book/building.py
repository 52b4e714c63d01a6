"""How the tests build books: the whole one at the root, and tiny ones in a temporary folder."""

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

ROOT = Path(__file__).parents[2]
HTML = ROOT / "_build" / "html"
EXTENSIONS = ROOT / "book" / "_ext"
NOTEBOOK = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""


def command(*arguments: str) -> list[str]:
    """Return the command line of a strict build of the book at the root."""
    return [
        str(Path(sys.executable).with_name("jupyter-book")),
        *("build", str(ROOT), "-W", "-n", "--keep-going", *arguments),
    ]


def build_book(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Build the book at the root and return what the build said.

    Raises:
        AssertionError: if the build failed, with its last lines.
    """
    done = subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=1200, env=env
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


def build_if_stale() -> Path:
    """Return the built book's folder; one process builds, the others wait for it."""
    HTML.parent.mkdir(exist_ok=True)
    stamp = HTML.parent / "tests.stamp"
    with open(HTML.parent / "tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = max(
            (p.stat().st_mtime for p in (stamp, HTML / "search.html") if p.exists()), default=0
        )
        if not (HTML / "search.html").exists() or newest_source() > built:
            build_book()
            stamp.touch()
    return HTML


def newest_source() -> float:
    """Return the time of the last change of anything that the pages are made of."""
    files = [ROOT / "_config.yml", ROOT / "_toc.yml"]
    files += (ROOT / "labs").glob("*.ipynb")
    for folder in ("book", "labkit"):
        files += [p for p in (ROOT / folder).rglob("*") if "__pycache__" not in p.parts]
    return max(path.stat().st_mtime for path in files)


def sphinx_app(
    folder: Path, extensions: list[str], builder: str = "html", **config: object
) -> Sphinx:
    """Return a Sphinx application for a tiny book whose pages lie in folder."""
    if str(EXTENSIONS) not in sys.path:
        sys.path.append(str(EXTENSIONS))
    settings = {
        "extensions": extensions,
        "exclude_patterns": ["_build"],
        "html_theme": "basic",
        "nb_execution_mode": "cache",
        **config,
    }
    out = folder / "_build"
    return Sphinx(
        folder,
        None,
        out / builder,
        out / f".doctrees-{builder}",
        builder,
        settings,
        None,
        _log(out),
    )


def build_tiny(folder: Path, extensions: list[str], builder: str = "html", **config: object) -> str:
    """Build a tiny book; return its warnings."""
    with docutils_namespace():
        app = sphinx_app(folder, extensions, builder, **config)
        app.build()
    return (folder / "_build" / "warnings.txt").read_text()


def _log(out: Path):
    out.mkdir(exist_ok=True)
    return open(out / "warnings.txt", "w", buffering=1)
