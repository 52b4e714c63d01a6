"""What chapter 7 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.viz.test_chapter03_names import resolve

PAGE = Path(__file__).parents[2] / "book" / "part2" / "07_experts.md"


def box():
    return PAGE.read_text().partition("In production")[2].partition("\n:::")[0]


NAMES = sorted({word for word in re.findall(r"`([^`\n]+)`", box()) if word.startswith("torch.")})


def test_the_box_names_them():
    assert NAMES == [
        "torch.distributed._functional_collectives",
        "torch.distributed.all_to_all_single",
        "torch.nn.functional.grouped_mm",
    ]
    assert "`DeviceMesh`" in box()
    assert "`all_to_all_single_autograd`" in box()


@pytest.mark.parametrize("name", [*NAMES, "torch.distributed.device_mesh.DeviceMesh"])
def test_name_exists(name):
    assert resolve(name) is not None


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("torch.nn.functional.expert_mm")


def test_the_private_one_exists():
    assert callable(functional.all_to_all_single_autograd)


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group(
        "gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "s"), 1)
    )
    yield
    dist.destroy_process_group()


def test_the_public_one_is_not_differentiated(one_rank):
    x = torch.ones(2, requires_grad=True)
    out = torch.empty(2)
    dist.all_to_all_single(out, x)
    assert not out.requires_grad


def test_grouped_products_are_those_one_by_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 8, generator=generator, dtype=torch.bfloat16)
    weights = torch.randn(3, 8, 16, generator=generator, dtype=torch.bfloat16)
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)  # the second expert has no rows
    got = torch.nn.functional.grouped_mm(x, weights, offs=ends)
    torch.testing.assert_close(got, torch.cat([x[:2] @ weights[0], x[2:] @ weights[2]]))
