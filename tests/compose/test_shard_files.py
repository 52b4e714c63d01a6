"""Checkpoints in shards: files that are complete and of one layout, or an error.

Promised: what ranks of one world write, a world of another size reads, to the last bit; a file
that is missing, damaged, renamed, of another world or of another step is refused by name.
Oracle: the full state that the ranks themselves put together.
"""

import shutil
from functools import partial

import pytest
import torch
from torch import nn

from labkit.compose.shard_files import load_shards, save_shard, shard_path
from labkit.launch import run_ranks
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.sharded_state import full_state_dict, load_full_state, state_dict


def model_of(group):
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)).double()
    model = FullyShardedModel(module, group)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def save(group, folder, step):
    torch.manual_seed(0)
    model, optimizer = model_of(group)
    model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    model.finish()
    optimizer.step()
    save_shard(folder, state_dict(model.pieces, optimizer, group), step=step)
    return full_state_dict(model.pieces, optimizer, group)


def load(group, folder):
    model, optimizer = model_of(group)
    load_full_state(load_shards(folder, step=7), model.pieces, optimizer)
    return full_state_dict(model.pieces, optimizer, group)


@pytest.mark.parametrize("world_size", [1, 4])
def test_written_by_two_read_by_another_number(world_size, tmp_path):
    expected = run_ranks(save, 2, tmp_path, 7)[0]
    for got in run_ranks(load, world_size, tmp_path):
        assert got.keys() == expected.keys()
        for name, tensors in expected.items():
            assert got[name].keys() == tensors.keys() == {"weight", "step", "exp_avg", "exp_avg_sq"}
            assert all(torch.equal(got[name][key], value) for key, value in tensors.items())


@pytest.fixture
def folder(tmp_path):
    run_ranks(save, 2, tmp_path, 7)
    return tmp_path


def truncated(folder):
    path = shard_path(folder, 1, 2)
    path.write_bytes(path.read_bytes()[:-9])


def swapped(folder):
    shutil.copy(shard_path(folder, 0, 2), shard_path(folder, 1, 2))


def emptied(folder):
    for path in folder.iterdir():
        path.unlink()


def pickled(folder):
    torch.save({}, shard_path(folder, 1, 2))


def foreign(folder):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, shard_path(folder, 1, 2))


def half_overwritten(folder):
    kept = shard_path(folder, 1, 2).read_bytes()
    run_ranks(save, 2, folder, 8)
    shard_path(folder, 1, 2).write_bytes(kept)


SECOND = "shard-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: shard_path(folder, 1, 2).unlink(), FileNotFoundError, f"{SECOND} is miss"),
        (truncated, ValueError, rf"{SECOND} \(\d+ bytes\) is damaged"),
        (swapped, ValueError, f"{SECOND} holds the shard of rank 0 of 2"),
        (emptied, FileNotFoundError, "no shard-"),
        (pickled, ValueError, f"{SECOND} is a pickle"),
        (foreign, ValueError, f"{SECOND} has no shard_layout"),
        (half_overwritten, ValueError, f"{SECOND} is of step 7, not 8"),
        (lambda folder: run_ranks(save, 4, folder, 7), ValueError, "shards of 2 and of 4 ranks"),
    ],
)
def test_refused(damage, error, message, folder):
    damage(folder)
    with pytest.raises(error, match=message):
        load_shards(folder)


def test_another_step_than_asked_for(folder):
    with pytest.raises(ValueError, match="is of step 7, not 9"):
        load_shards(folder, step=9)


def test_a_model_of_another_shape(folder):
    def into_wider(group, folder):
        model = FullyShardedModel(nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 1)).double(), group)
        optimizer = torch.optim.AdamW(model.parameters())
        with pytest.raises(ValueError, match=r"0.weight is \(5, 3\) in the state, \(6, 3\)"):
            load_full_state(load_shards(folder), model.pieces, optimizer)

    run_ranks(partial(into_wider), 1, folder)
