"""What chapter 4 says about PyTorch holds in the installed torch. Oracle: torch itself."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from labkit.launch import run_ranks

PAGE = Path(__file__).parents[2] / "book" / "part2" / "04_sharding.md"
# Names of torch that the page gives without their module.
SHORT = {
    "ZeroRedundancyOptimizer": "torch.distributed.optim.ZeroRedundancyOptimizer",
    "fully_shard": "torch.distributed.fsdp.fully_shard",
    "MixedPrecisionPolicy": "torch.distributed.fsdp.MixedPrecisionPolicy",
    "FullyShardedDataParallel": "torch.distributed.fsdp.FullyShardedDataParallel",
    "checkpoint": "torch.utils.checkpoint.checkpoint",
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
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_name_exists(name):
    found = resolve(name)
    assert callable(found) or inspect.ismodule(found)


def test_a_wrong_name_is_noticed():
    with pytest.raises(AttributeError):
        resolve("torch.distributed.fsdp.FullyShardedModel")


@pytest.mark.parametrize(
    ("setting", "function"),
    [
        ("reshard_after_forward", fully_shard),
        ("use_reentrant", torch.utils.checkpoint.checkpoint),
    ],
)
def test_settings_are_named_and_exist(setting, function):
    assert setting in PAGE.read_text()
    assert setting in inspect.signature(function).parameters


def own_shapes(group):
    parameters = [nn.Parameter(torch.zeros(6, 6)), nn.Parameter(torch.zeros(2))]
    optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, group, lr=0.1)
    return [tuple(p.shape) for each in optimizer.optim.param_groups for p in each["params"]]


def test_shares_of_zero_redundancy_optimizer_are_whole_parameters():
    assert run_ranks(own_shapes, 2, debug=False) == [[(6, 6)], [(2,)]]


def test_muon_refuses_pieces():
    with pytest.raises(ValueError, match="only supports 2D"):
        torch.optim.Muon([nn.Parameter(torch.zeros(5))])
