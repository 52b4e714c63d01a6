"""What chapter 8 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import re
from pathlib import Path

import pytest

from tests.viz.test_chapter03_names import resolve

PAGE = Path(__file__).parents[2] / "book" / "part2" / "08_hybrid.md"


def box():
    return PAGE.read_text().partition("In production")[2].partition("\n:::")[0]


NAMES = sorted({word for word in re.findall(r"`([^`\n]+)`", box()) if word.startswith("torch.")})


def test_the_box_names_them():
    assert NAMES == [
        "torch.distributed.checkpoint",
        "torch.distributed.device_mesh.init_device_mesh",
        "torch.distributed.run",
        "torch.distributed.tensor.experimental.context_parallel",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert resolve(name) is not None


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("torch.distributed.device_mesh.init_mesh")
