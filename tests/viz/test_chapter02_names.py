"""The names of PyTorch that chapter 2 gives exist in the installed torch. Oracle: torch itself."""

import importlib
import os
import re
from pathlib import Path

import pytest
import torch.distributed as dist

PAGE = Path(__file__).parents[2] / "book" / "part1" / "02_collectives.md"
# Names of the column that do not start with a module.
SHORT = {"init_device_mesh": "torch.distributed.device_mesh.init_device_mesh"}
ENVIRONMENT = "TORCH_DISTRIBUTED_DEBUG=DETAIL"


def pytorch_names(text):
    """Code words in the second column of the table under "In production"."""
    box = text.partition("In production")[2]
    rows = [line.split("|") for line in box.splitlines() if line.startswith("|")]
    assert rows[0][2].strip() == "PyTorch"
    return sorted({name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row[2])})


def resolve(name):
    """The object behind a dotted name; AttributeError or ImportError where there is none."""
    name = SHORT.get(name, name).replace("dist.", "torch.distributed.", 1)
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last)
    except AttributeError:
        return importlib.import_module(name)


NAMES = pytorch_names(PAGE.read_text())


def test_the_table_was_found():
    assert len(NAMES) >= 10
    assert "dist.batch_isend_irecv" in NAMES


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("torchrun", ENVIRONMENT)])
def test_name_exists(name):
    assert resolve(name) is not None


def test_a_wrong_name_is_noticed():
    with pytest.raises(ImportError):
        resolve("dist.ring_all_reduce")


@pytest.mark.parametrize("name", ["torch.distributed.run", "reduce_scatter_single"])
def test_names_of_the_sentence_below(name):
    assert f"`{name}`" in PAGE.read_text()
    assert resolve(name if "." in name else f"dist.{name}") is not None


def test_debug_level_follows_the_variable(monkeypatch):
    variable, value = ENVIRONMENT.split("=")
    monkeypatch.setitem(os.environ, variable, value)
    before = dist.get_debug_level()
    dist.set_debug_level_from_env()
    try:
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    finally:
        dist.set_debug_level(before)


def test_group_ranks_are_arguments_as_the_page_says():
    assert {"src", "group_src"} <= set(dist.broadcast.__wrapped__.__code__.co_varnames)
    assert {"dst", "group_dst"} <= set(dist.reduce.__wrapped__.__code__.co_varnames)
