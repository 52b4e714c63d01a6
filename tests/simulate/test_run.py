"""A rank of a fake world does, sends and holds what it does on ranks that exist.

Oracle: the same `run_rank` on gloo ranks of this machine, every call and event compared, and every
byte held. Ranks that no simulation runs are compared with their representative. For ZeRO's table,
the paper (arXiv 1910.02054, figure 1) and the formulas of labkit.cost.
"""

from dataclasses import replace

import pytest

from labkit.compose.plan import Plan
from labkit.cost.architecture import Architecture
from labkit.cost.counting import num_parameters
from labkit.launch import run_ranks
from labkit.model.config import ModelConfig
from labkit.simulate.run import Job, model_config, representative, run_rank, simulate

from .plans import PLANS, TINY, job

NAMES = {n: [name for name, p in PLANS.items() if p.world_size == n] for n in (1, 2, 4)}


def on_this_rank(group, names):
    return {name: run_rank(job(name)) for name in names}


@pytest.fixture(scope="module")
def real():
    """Runs of every plan on real ranks, by name: one launch a world size."""
    found = {}
    for world_size, names in NAMES.items():
        ranks = run_ranks(on_this_rank, world_size, names, timeout=120)
        found |= {name: [each[name] for each in ranks] for name in names}
    return found


@pytest.mark.parametrize("name", PLANS)
def test_a_fake_rank_does_and_holds_what_a_real_one_does(name, real):
    plan = PLANS[name]
    for stage, fake in enumerate(simulate(job(name))):
        true = real[name][representative(plan, stage)]
        assert fake.rank == true.rank
        assert calls(fake) == calls(true)
        assert fake.events == true.events
        assert fake.flops == true.flops > 0
        assert fake.held == true.held
        assert fake.peak == true.peak
        assert fake.most_kept_bytes == true.most_kept_bytes > 0
        for rank in peers(plan, stage):
            assert real[name][rank].flops == true.flops
            assert kinds(real[name][rank]) == kinds(true)


def calls(run):
    return [
        (c.operation, c.axis, c.ranks, c.payload_bytes, c.bytes_sent, c.dtype, c.peer)
        for c in run.ledger.ops
    ]


def kinds(run):
    """Calls without those that name the first rank of a group: of K's and V's replicas, say."""
    return sorted((c.operation, c.axis, c.payload_bytes) for c in run.ledger.ops)


def peers(plan, stage):
    """All ranks of a stage."""
    return [(dp * plan.pp + stage) * plan.tp + tp for dp in range(plan.dp) for tp in range(plan.tp)]


# 36 layers of width 4096 would take half a minute each: 4 of them have the same bytes a parameter.
NARROW = ModelConfig(
    num_layers=4,
    hidden_size=256,
    intermediate_size=704,
    num_heads=8,
    num_kv_heads=8,
    head_dim=32,
    vocab_size=2000,
    max_seq_len=16,
)
PAPER_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}


@pytest.mark.parametrize("stage", PAPER_GB)
def test_zeros_table_of_bytes_a_parameter_on_64_ranks(stage):
    """Figure 1 of the paper is for 7.5 billion; stage 3's 1.9 GB is 16/64 bytes rounded up."""
    plan = Plan(dp=64, zero=stage)
    [run] = simulate(Job(config=NARROW, plan=plan, seq_len=4, bucket_bytes=64 * 2**20))
    a_parameter = run.held.state_bytes / num_parameters(Architecture.of(NARROW))
    assert 7.5 * a_parameter == pytest.approx(PAPER_GB[stage], rel=0.03)
    assert run.held.by_category["activations"] <= 4  # the number that scales the loss


def test_a_run_repeats_to_the_last_byte():
    first, second = (simulate(job("dp x tp"))[0] for _ in range(2))
    assert calls(first) == calls(second)
    assert first.events == second.events
    assert first.peak == second.peak


def test_progress_is_told_in_order():
    told = []
    simulate(job("GPipe"), lambda what, done, total: told.append((what, done, total)))
    assert [done for _, done, _ in told] == [0, 1, 2, 3, 3, 4, 5, 6]
    assert {total for _, _, total in told} == {6}


def test_unknown_names_and_sizes_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="no model 'llama9'; there are llama3-405b"):
        model_config("llama9")
    with pytest.raises(ValueError, match="precision 'fp9' is not one of"):
        replace(job("1F1B"), precision="fp9")
    with pytest.raises(ValueError, match="0 sequences of 16 tokens: the least is 1"):
        replace(job("1F1B"), micro_batch_size=0)
    with pytest.raises(ValueError, match="4 heads over tp=3"):
        Job(config=TINY, plan=Plan(tp=3), seq_len=16)
    with pytest.raises(ValueError, match="65 tokens, but max_seq_len is 64"):
        replace(job("1F1B"), seq_len=65)
