"""The names of PyTorch that chapter 2 gives exist in the installed torch. Oracle: torch itself."""

import importlib
import os
import re
from pathlib import Path

import pytest
import torch.distributed as dist

PAGE = Path(__file__).parents[2] / "book" / "part1" / "02_collectives.md"
# Names of torch that the page gives without their module.
SHORT = {
    "init_device_mesh": "torch.distributed.device_mesh.init_device_mesh",
    "reduce_scatter_single": "torch.distributed.reduce_scatter_single",
}
ENVIRONMENT = "TORCH_DISTRIBUTED_DEBUG=DETAIL"


def pytorch_names(text):
    """Code words of the box "In production" that are torch's."""
    box = text.partition("In production")[2].partition("\n:::")[0]
    words = set(re.findall(r"`([^`\n]+)`", box))
    return sorted(word for word in words if word.startswith(("dist.", "torch.")) or word in SHORT)


def resolve(name):
    """The object behind a dotted name; AttributeError or ImportError where there is none."""
    name = SHORT.get(name, name).replace("dist.", "torch.distributed.", 1)
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last)
    except AttributeError:
        return importlib.import_module(name)


NAMES = pytorch_names(PAGE.read_text())


def test_the_box_was_found():
    assert set(SHORT) < set(NAMES)
    assert len(NAMES) >= 9
    assert "dist.batch_isend_irecv" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert resolve(name) is not None


def test_a_wrong_name_is_noticed():
    with pytest.raises(ImportError):
        resolve("dist.ring_all_reduce")


def test_torchrun_is_the_module_that_the_page_names():
    assert "torch.distributed.run" in NAMES
    assert callable(resolve("torch.distributed.run").main)


def test_debug_level_follows_the_variable(monkeypatch):
    assert f"`{ENVIRONMENT}`" in PAGE.read_text()
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
