"""Shards of a module without a plan: any number of ranks reads what another number wrote.

Promised: to the last bit, with the optimizer's tensors; a model of another shape is refused.
Oracle: the full state that the ranks themselves put together. Damage: test_layout_files.py.
"""

import pytest
import torch
from torch import nn

from labkit.compose.manifest import latest
from labkit.compose.shard_files import load_shards, save_shards
from labkit.launch import run_ranks
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.sharded_state import full_state_dict, load_full_state, state_dict


def model_of(group, width=5):
    module = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1)).double()
    model = FullyShardedModel(module, group)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def save(group, root):
    torch.manual_seed(0)
    model, optimizer = model_of(group)
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    model.finish()
    optimizer.step()
    save_shards(root, state_dict(model.pieces, optimizer, group), group, step=7)
    return full_state_dict(model.pieces, optimizer, group)


def load(group, root):
    model, optimizer = model_of(group)
    load_full_state(load_shards(latest(root)), model.pieces, optimizer)
    return full_state_dict(model.pieces, optimizer, group)


@pytest.mark.parametrize("world_size", [1, 4])
def test_written_by_two_read_by_another_number(world_size, tmp_path):
    expected = run_ranks(save, 2, tmp_path)[0]
    for got in run_ranks(load, world_size, tmp_path):
        assert got.keys() == expected.keys()
        for name, tensors in expected.items():
            assert got[name].keys() == tensors.keys() == {"weight", "step", "exp_avg", "exp_avg_sq"}
            assert all(torch.equal(got[name][key], value) for key, value in tensors.items())


def test_a_model_of_another_shape(tmp_path):
    def into_wider(group, root):
        model, optimizer = model_of(group, width=6)
        with pytest.raises(ValueError, match=r"0.weight is \(5, 3\) in the state, \(6, 3\)"):
            load_full_state(load_shards(latest(root)), model.pieces, optimizer)

    run_ranks(save, 2, tmp_path)
    run_ranks(into_wider, 1, tmp_path)
