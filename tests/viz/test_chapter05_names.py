"""What chapter 5 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import re
from pathlib import Path

import pytest

from tests.viz.test_chapter03_names import resolve

PAGE = Path(__file__).parents[2] / "book" / "part2" / "05_tensor_parallelism.md"
MODULE = "torch.distributed.tensor.parallel"
# Names of torch that the page gives without their module.
SHORT = {
    "ColwiseParallel",
    "PrepareModuleInput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
}


def box():
    return PAGE.read_text().partition("In production")[2].partition("\n:::")[0]


def test_the_box_names_them():
    words = set(re.findall(r"`([^`\n]+)`", box()))
    assert words >= SHORT | {MODULE}


@pytest.mark.parametrize("name", sorted(SHORT))
def test_short_name_exists(name):
    assert callable(resolve(f"{MODULE}.{name}"))


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve(f"{MODULE}.DiagonalParallel")
