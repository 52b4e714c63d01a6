"""sharded_state: one state for any number of ranks.

Promised: training that is stopped at one world size and goes on at another, or in another stage,
ends with the numbers of one process that was never stopped (row D11 of the list of pitfalls);
shards that do not fit together, or not the model, are refused with both of what differs.
Oracle: AdamW on one process, float64.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import run_ranks
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.sharded_state import (
    full_state_dict,
    load_full_state,
    merge,
    state_dict,
)
from labkit.parallel.zero import ZeroOptimizer
from tests.parallel.sharding import ADAMW, CASES, TOL, Odd, own_part, serial

BEFORE, AFTER = 2, 3  # steps


def run(group, case, stage, steps, full):
    """Load a whole state, if there is one, train, and return this shard and the whole state."""
    make, batch, loss = CASES[case]
    module = make()
    module.requires_grad_(True)  # stage 3 has frozen parameters in its state, 1 and 2 have not
    if stage == 3:
        model = sharded = FullyShardedModel(module, group)
        optimizer = ADAMW(model.parameters())
    else:
        model = module
        sharded = ZeroOptimizer(module, ADAMW, group, stage=stage, bucket_bytes=30_000)
        optimizer = sharded.optimizer
    if full is not None:
        load_full_state(full, sharded.pieces, optimizer)
        if stage < 3:
            sharded.gather_weights()
    for step in steps:
        loss(model, own_part(group, batch(step))).backward()
        if stage == 3:
            model.finish()
        (optimizer if stage == 3 else sharded).step()
        (optimizer if stage == 3 else sharded).zero_grad()
    shard = state_dict(sharded.pieces, optimizer, group)
    return shard, full_state_dict(sharded.pieces, optimizer, group)


def never_stopped(case):
    make, batch, loss = CASES[case]
    module = make()
    module.requires_grad_(True)
    optimizer = ADAMW(module.parameters())
    for step in range(BEFORE + AFTER):
        loss(module, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: {"weight": p.detach(), **optimizer.state.get(p, {})}
        for name, p in module.named_parameters()
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, 2), (1, 1)), ((1, 2), (2, 4)), ((3, 4), (3, 2)), ((2, 2), (3, 4)), ((3, 2), (1, 1))],
    ids=str,
)
@pytest.mark.parametrize("case", ["odd", "tied"])
def test_stopped_at_one_world_size_and_stage_and_gone_on_at_another(case, before, after):
    (stage, world_size), (next_stage, next_size) = before, after
    saved = run_ranks(run, world_size, case, stage, range(BEFORE), None)
    full = merge([shard for shard, _ in reversed(saved)])  # in any order
    ended = run_ranks(run, next_size, case, next_stage, range(BEFORE, BEFORE + AFTER), full)
    expected = never_stopped(case)
    for _, got in ended:
        assert got.keys() == expected.keys()
        for name, tensors in expected.items():
            assert got[name].keys() == tensors.keys(), "one that was never used has no state"
            for key, value in tensors.items():
                torch.testing.assert_close(got[name][key], value, **TOL)


def two_shards():
    return [shard for shard, _ in run_ranks(run, 2, "odd", 1, range(1), None)]


def changed(shard, name, **fields):
    piece = replace(shard.pieces[name], **fields)
    return replace(shard, pieces=shard.pieces | {name: piece})


def test_what_does_not_fit_together_is_refused():
    first, second = two_shards()
    d = second.pieces["d"]
    short = {key: value[:-1] if value.dim() else value for key, value in d.tensors.items()}
    no_moment = {key: value for key, value in d.tensors.items() if key != "exp_avg"}
    cut_moment = d.tensors | {"exp_avg": d.tensors["exp_avg"][:-1]}
    other_step = d.tensors | {"step": torch.tensor(9.0)}
    cases = [
        ([], "0 shards"),
        ([first], r"shards of ranks \[0\] are there, not of 0 to 1 each once"),
        ([first, first], r"shards of ranks \[0, 0\] are there"),
        ([first, replace(second, world_size=4)], "rank 0 is of 2 ranks, that of rank 1 of 4"),
        ([first, replace(second, pieces={})], "ranks 0 and 1: only one of them has"),
        ([first, changed(second, "d", shape=(8,))], r"d is \(7,\) in one shard and \(8,\)"),
        ([first, changed(second, "d", start=6)], "d: a piece begins at 6, the one before ends at"),
        ([first, changed(second, "d", tensors=short)], "d has 7 elements, its pieces have 6"),
        ([first, changed(second, "d", tensors=no_moment)], "exp_avg of d is in 1 of 2 pieces"),
        ([first, changed(second, "d", tensors=cut_moment)], "exp_avg of d is .* in a piece of"),
        ([first, changed(second, "d", tensors=other_step)], "step of d is 1.0 in one piece"),
    ]
    for shards, message in cases:
        with pytest.raises(ValueError, match=message):
            merge(shards)


def refuse(group, full):
    model = FullyShardedModel(nn.Linear(3, 2).double(), group)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = ADAMW(model.parameters())
    with pytest.raises(ValueError, match=full.pop("message")):
        load_full_state(full["state"], model.pieces, optimizer)
    return all(map(torch.equal, before, model.parameters()))


def test_another_model_is_refused_and_nothing_changed():
    weight = {"weight": torch.zeros(2, 3, dtype=torch.float64)}
    bias = {"weight": torch.zeros(2, dtype=torch.float64)}
    wide = {"weight": torch.zeros(2, 4, dtype=torch.float64)}
    for state, message in (
        ({"weight": weight}, "bias is in the model and not in the state"),
        ({"weight": weight, "bias": bias, "gain": bias}, "gain is in the state and not in the mod"),
        ({"bias": bias, "weight": wide}, r"weight is \(2, 4\) in the state, \(2, 3\) in the model"),
    ):
        assert run_ranks(refuse, 1, {"state": state, "message": message}) == [True]


def gathered(group):
    zero = ZeroOptimizer(Odd(), ADAMW, group, stage=1)
    full = full_state_dict(zero.pieces, zero.optimizer, group)
    return dist.get_rank(group), full


def test_before_the_first_step_there_are_only_weights():
    for _, full in run_ranks(gathered, 4):
        for name, value in Odd().state_dict().items():
            if name != "frozen":
                assert full[name].keys() == {"weight"}
                assert torch.equal(full[name]["weight"], value)
    assert serial("odd"), "the oracle runs"
