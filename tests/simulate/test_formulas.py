"""Formula = ledger = simulation, for every strategy that a plan can name.

Oracle: labkit.cost, which knows no tensor. Exchanges and bytes are
equal, axis by axis and stage by stage; memory is within 3 %. That the simulation's ledger is that
of real ranks is shown in test_run.py.
"""

import pytest

from labkit.cost.architecture import Architecture
from labkit.cost.layout import Layout
from labkit.cost.layout_memory import layout_memory
from labkit.cost.layout_traffic import layout_traffic
from labkit.cost.memory import FP32, MIXED
from labkit.simulate.report import num_exchanges
from labkit.simulate.run import simulate

from .plans import PLANS, job

# The formulas know 1F1B and its interleaved form, not GPipe and ZB-H1.
KNOWN = [name for name, plan in PLANS.items() if plan.schedule in ("1f1b", "interleaved")]
RECIPES = {"mixed": MIXED, "fp32": FP32}
NUMBER_BYTES = {"mixed": 2, "fp32": 4}


def layout_of(job):
    plan = job.plan
    return Layout(
        dp=plan.dp,
        pp=plan.pp,
        tp=plan.tp,
        zero=plan.zero,
        sequence_parallel=plan.sequence_parallel,
        recompute=plan.recompute,
        micro_batch_size=job.micro_batch_size,
        num_micro_batches=plan.num_micro_batches,
        chunks=plan.chunks,
    )


@pytest.mark.parametrize("precision", RECIPES)
@pytest.mark.parametrize("name", KNOWN)
def test_formula_and_simulation_agree(name, precision):
    it = job(name, precision)
    model, layout = Architecture.of(it.config), layout_of(it)
    for stage, run in enumerate(simulate(it)):
        traffic = layout_traffic(
            model,
            layout,
            seq_len=it.seq_len,
            number_bytes=NUMBER_BYTES[precision],
            stage=stage,
            clipped=True,
        )
        for axis, formula in traffic.items():
            assert run.ledger.bytes_sent(axis=axis) == formula.bytes_sent, axis
            if any(len(call.ranks) > 1 for call in run.ledger.ops if call.axis == axis):
                assert num_exchanges(run.ledger, axis) == formula.num_exchanges, axis
            else:
                assert formula.num_messages == 0, axis
        memory = layout_memory(
            model, layout, seq_len=it.seq_len, recipe=RECIPES[precision], stage=stage
        )
        assert run.most_kept_bytes == pytest.approx(memory.activation_bytes, rel=0.03)
        wide = layout_memory(model, layout, seq_len=it.seq_len, recipe=FP32, stage=stage)
        # ZeRO 3's shards are in fp32, and so are the sums of gradients of ZeRO 2.
        states = wide if layout.zero == 3 else memory
        sums = wide if layout.zero >= 2 else memory
        held = run.held.by_category
        assert held["parameters"] == pytest.approx(states.parameter_bytes, rel=0.03)
        assert held["gradients"] == pytest.approx(sums.gradient_bytes, rel=0.03)
        assert held["optimizer"] == pytest.approx(states.optimizer_bytes, rel=0.03)
