"""A rank of a fake world does, sends and holds what it does on ranks that exist.

Oracle: the same `run_rank` on gloo ranks of this machine, every call and event compared, every byte
of memory. The ranks of dp and tp that no simulation runs are compared with their representative.
"""

import pytest

from labkit.launch import run_ranks
from labkit.simulate.run import representative, run_rank, simulate

from .plans import PLANS, job


def on_this_rank(group, job):
    return run_rank(job)


@pytest.mark.parametrize("name", PLANS)
def test_a_fake_rank_does_what_a_real_one_does(name):
    plan = PLANS[name]
    real = run_ranks(on_this_rank, plan.world_size, job(name), timeout=60)
    for stage, fake in enumerate(simulate(job(name))):
        assert fake.rank == representative(plan, stage)
        true = real[fake.rank]
        assert calls(fake) == calls(true)
        assert fake.events == true.events
        assert fake.flops == true.flops > 0
        assert fake.held == true.held
        assert fake.peak == true.peak
        assert fake.most_activation_bytes == true.most_activation_bytes > 0
        for rank in peers(plan, stage):
            assert real[rank].flops == true.flops
            assert sums(real[rank]) == sums(true)


def calls(run):
    return [
        (c.operation, c.axis, c.ranks, c.payload_bytes, c.bytes_sent, c.dtype, c.peer)
        for c in run.ledger.ops
    ]


def sums(run):
    return len(run.ledger.ops), run.ledger.count("all_reduce")


def peers(plan, stage):
    """All ranks of a stage."""
    return [
        (dp * plan.pp + stage) * plan.tp + tp for dp in range(plan.dp) for tp in range(plan.tp)
    ]
