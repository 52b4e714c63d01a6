"""What chapter 6 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import inspect
import re
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import pipelining

PAGE = Path(__file__).parents[2] / "book" / "part2" / "06_pipeline.md"


def names_in_the_box(text):
    """Code words of the box "In production" that look like classes of torch."""
    box = text.partition("In production")[2].partition("\n:::")[0]
    words = re.findall(r"`([^`\n]+)`", box)
    return sorted({word for word in words if re.fullmatch(r"Schedule\w+|PipelineStage", word)})


NAMES = names_in_the_box(PAGE.read_text())


def test_the_box_was_found():
    assert len(NAMES) == 7
    assert "`torch.distributed.pipelining`" in PAGE.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert callable(getattr(pipelining, name))


def test_a_wrong_name_is_noticed():
    assert not hasattr(pipelining, "ScheduleNaive")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Schedule")])
def test_gradients_are_divided_where_the_page_says(name):
    parameters = inspect.signature(getattr(pipelining, name)).parameters
    assert parameters["scale_grads"].default is True


def test_zb1p_is_what_the_documentation_calls_it():
    assert "ZB1P" in inspect.getdoc(pipelining.ScheduleInterleavedZeroBubble)
    assert "called ZB1P" in " ".join(PAGE.read_text().split())


def test_batched_exchange_exists():
    assert callable(dist.batch_isend_irecv)
    assert "`batch_isend_irecv`" in PAGE.read_text()
