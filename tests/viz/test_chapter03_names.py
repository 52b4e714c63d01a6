"""What chapter 3 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

PAGE = Path(__file__).parents[2] / "book" / "part2" / "03_data_parallelism.md"
# Names of torch that the page gives without their module.
SHORT = {
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "DistributedSampler": "torch.utils.data.DistributedSampler",
    "no_sync": "torch.nn.parallel.DistributedDataParallel.no_sync",
    "join": "torch.nn.parallel.DistributedDataParallel.join",
    "register_comm_hook": "torch.nn.parallel.DistributedDataParallel.register_comm_hook",
}
SETTINGS = {
    "bucket_cap_mb",
    "static_graph",
    "gradient_as_bucket_view",
    "find_unused_parameters",
}


def pytorch_names(text):
    """Code words of the box "In production" that are torch's."""
    box = text.partition("In production")[2].partition("\n:::")[0]
    words = set(re.findall(r"`([^`\n]+)`", box))
    return sorted(word for word in words if word.startswith("torch.") or word in SHORT)


def resolve(name):
    """The object behind a dotted name; AttributeError or ImportError where there is none."""
    parts = SHORT.get(name, name).split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


NAMES = pytorch_names(PAGE.read_text())


def test_the_box_was_found():
    assert set(SHORT) < set(NAMES)
    assert len(NAMES) >= 9


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    assert callable(resolve(name))


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("torch.nn.parallel.NaiveDataParallel")


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_settings_of_the_wrapper_are_named_and_exist(name):
    assert re.search(rf"`{name}(=True)?`", PAGE.read_text())
    assert name in inspect.signature(DistributedDataParallel).parameters


def test_default_buckets_are_as_large_as_the_page_says():
    assert "first bucket holds 1 MiB and each later one 25 MiB" in " ".join(
        PAGE.read_text().split()
    )
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == 2**20
    assert distributed._DEFAULT_BUCKET_CAP_MB == 25


def test_hook_is_given_the_parameter():
    weight = nn.Parameter(nn.Linear(2, 1).weight.detach().clone())
    given = []
    weight.register_post_accumulate_grad_hook(given.append)
    weight.sum().backward()
    assert given[0] is weight
