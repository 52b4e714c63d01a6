"""Every message and hint of the labs, from the files in messages/: one place to translate.

A key is "lab02.ring_all_reduce.bytes", from messages/lab02.toml, or "run.hang", from
messages/common.toml. What a check prints when it holds needs no language.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

COMMON = "run"


def message(key: str, values: Mapping[str, Any]) -> str:
    """The text of a key with its values filled in.

    Raises:
        ValueError: if there is no such key, or a value is missing.
    """
    text = _entry(key)["text"]
    try:
        return text.format_map(values)
    except KeyError as error:
        raise ValueError(
            f"the message {key!r} needs a value {error}; it got {list(values)}"
        ) from None


def hints(key: str) -> list[str]:
    """Hints of a key, from the gentlest to the plainest."""
    return _entry(key).get("hints", [])


@cache
def entries(lab: str) -> dict[str, dict[str, Any]]:
    """All entries of "lab02", or of "run", what is common to all."""
    name = "common" if lab == COMMON else lab
    path = files("labkit.grade").joinpath("messages", f"{name}.toml")
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _entry(key: str) -> dict[str, Any]:
    lab = key.partition(".")[0]
    if key not in entries(lab):
        raise ValueError(f"no message {key!r} in labkit/grade/messages for {lab!r}")
    return entries(lab)[key]
