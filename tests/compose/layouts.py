"""Runs of a small model under a plan, saved and loaded, for the tests of checkpoints."""

import os
from functools import partial

import torch

from labkit.compose import make_mesh, parallelize
from labkit.compose.parallel_files import load_parallel, save_parallel
from labkit.compose.whole_state import whole_state
from labkit.launch import run_ranks
from tests.compose.one_process import ADAMW, CLIP, batch, decay, nano


def build(plan, changes):
    model = nano(**{"num_layers": 4, **changes})
    rate = 0.01 if model.config.balancing else 0.0
    how = dict(clip_norm=CLIP, options=decay, balancing_rate=rate)
    return parallelize(model, plan, make_mesh(plan), ADAMW, **how)


def run(group, plan, root, *, until, save_at=(), resume=True, die_at=None, changes=()):
    """(losses, state before, state after) of steps up to `until`; resumed, if there is anything."""
    parallel, start = build(plan, dict(changes)), 0
    if resume:
        start = load_parallel(root, parallel)
    before, losses = whole_state(parallel), {}
    for step in range(start, until):
        if group.rank() == 1 and step == die_at:
            os._exit(9)
        losses[step] = parallel.step(*batch(step)).item()
        if step + 1 in save_at:
            save_parallel(root, parallel, step=step + 1)
    after = whole_state(parallel)
    return (losses, before, after) if group.rank() == 0 else (losses, None, None)


def on_ranks(plan, root, **how):
    """The same of rank 0; all have the same losses."""
    results = run_ranks(partial(run, **how), plan.world_size, plan, root)
    assert all(result[0] == results[0][0] for result in results)
    return results[0]


def assert_equal(got, expected):
    """Two whole states, to the last bit."""
    assert got.keys() == expected.keys()
    for name, tensors in expected.items():
        assert got[name].keys() == tensors.keys(), name
        for key, value in tensors.items():
            assert torch.equal(got[name][key], value), (key, name)
