"""The hybrid table: losses of 20 steps on real text, and bytes by axis, beside one process.

Promised: for every factorisation of 4 ranks into (dp, pp, tp), for the named plans of cp and ep,
and for some of 8 ranks: losses within 1e-9 of one process (float64; seen: 1e-14), and bytes sent
as labkit.cost predicts, to the byte. `labkit bench hybrid` runs the rest. Oracles: torch's
optimizer on one process; the formulas. Planted faults are far outside.
"""

import pytest
import torch.distributed as dist

from labkit.bench import hybrid
from labkit.bench.hybrid import PLANS, STEPS, config_of, run, serial_losses
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.sharers import WithExperts
from labkit.launch import run_ranks

TOLERANCE = 1e-9
EIGHT = ("dp2 pp2 tp2", "pp2 cp2 ep2")
NAMES = [name for name, plan in PLANS.items() if plan.world_size == 4] + [*EIGHT]


def test_the_table_has_every_factorisation():
    axes = [(p.dp, p.pp, p.tp) for p in PLANS.values() if p.cp == p.ep == 1]
    assert sum(dp * pp * tp == 4 for dp, pp, tp in axes) == 6
    assert sum(dp * pp * tp == 8 for dp, pp, tp in axes) == 10


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_one_process_and_bytes_those_of_the_formulas(name):
    row = run(PLANS[name])
    assert row.deviation < TOLERANCE
    assert row.sent_bytes == row.predicted_bytes
    assert sum(row.sent_bytes.values()) > 0


def faulty(group: dist.ProcessGroup, name: str, fault: str):
    if fault == "experts are not divided by ep":
        WithExperts.ep = property(lambda self: 1, lambda self, ep: None)  # type: ignore[assignment]
    if fault == "the same rows on both replicas":
        plain = ParallelModel.own_tokens

        def first_rows(self, x):
            half = len(x) // 2
            return plain(self, x[:half].repeat(2, 1))

        ParallelModel.own_tokens = first_rows  # type: ignore[method-assign]
    return hybrid._on_rank(group, PLANS[name], STEPS)["losses"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("dp2 ep2, ZeRO 1", "experts are not divided by ep"),
        ("dp4", "the same rows on both replicas"),
    ],
)
def test_faults_are_seen(name, fault):
    losses = run_ranks(faulty, 4, name, fault, timeout=120)[0]
    expected = serial_losses(config_of(PLANS[name]), STEPS)
    worst = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    assert worst > 100 * TOLERANCE
