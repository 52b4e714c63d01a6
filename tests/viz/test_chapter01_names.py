"""What chapter 1 says about PyTorch, and types from papers, holds. Oracles: torch, labkit.cost."""

import importlib
import re
from pathlib import Path

import pytest
import torch.distributed as dist

from labkit.cost.hardware import link
from labkit.cost.scaling_laws import GOPHER_BUDGET_FLOPS

PAGE = Path(__file__).parents[2] / "book" / "part1" / "01_one_gpu.md"
TEXT = PAGE.read_text()


def torch_names(text):
    """Dotted names of torch in the box "In production"."""
    box = text.partition("In production")[2].partition("\n:::")[0]
    words = set(re.findall(r"`(torch\.[\w.]+)[^`\n]*`", box))
    return sorted(words)


def resolve(name):
    """The object behind a dotted name; AttributeError or ImportError where there is none."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last)
    except AttributeError:
        return importlib.import_module(name)


NAMES = torch_names(TEXT)


def test_the_box_was_found():
    assert {"torch.device", "torch.utils.flop_counter.FlopCounterMode"} < set(NAMES)
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert resolve(name) is not None


def test_a_wrong_name_is_noticed():
    with pytest.raises((AttributeError, ImportError)):
        resolve("torch.utils.flop_counter.FlopCounter")


def test_backend_fake_exists():
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    assert "fake" in dist.Backend.backend_list


def test_link_of_the_example_is_the_tables():
    nvlink = link("nvlink4")
    assert f"{1e6 * nvlink.latency_s:.1f} µs a step" in TEXT
    assert f"NVLink's {nvlink.bandwidth_bytes_per_s / 1e9:.0f} GB/s" in TEXT


def test_literature_that_is_typed_stands_beside_its_source():
    for number, source in (
        (r"3\.0 times in two years.*1\.6 times.*1\.4 times", "gholami2024memory"),
        (r"38 to 43 %", "its table 4"),
        (r"20 tokens a parameter", "hoffmann2022training"),
        (r"two US dollars an hour", "DeepSeek's report"),
    ):
        found = re.search(rf"{number}.{{0,160}}{source}", " ".join(TEXT.split()))
        assert found, number
    assert f"{GOPHER_BUDGET_FLOPS:.2e}" == "5.76e+23"


def test_the_price_of_an_hour_is_one_name_that_a_reader_changes():
    assert len(re.findall(r"^PRICE = ", TEXT, re.MULTILINE)) == 1
    assert len(re.findall(r"price_per_hour=(?!PRICE)", TEXT)) == 0
