"""Every strategy that a plan can name, alone and with others, small enough for real ranks."""

from labkit.compose.plan import Plan
from labkit.model.config import ModelConfig
from labkit.simulate.run import Job

TINY = ModelConfig(
    num_layers=4,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=68,  # with 67 the last rank of tp multiplies one row less than its representative
    max_seq_len=64,
)
PLANS = {
    "one rank": Plan(num_micro_batches=2),
    "data parallel": Plan(dp=2, num_micro_batches=2),
    "ZeRO 1": Plan(dp=2, zero=1, num_micro_batches=2),
    "ZeRO 2": Plan(dp=2, zero=2, num_micro_batches=2),
    "ZeRO 3": Plan(dp=4, zero=3, num_micro_batches=2),
    "tensor parallel": Plan(tp=2),
    "sequence parallel": Plan(tp=2, sequence_parallel=True),
    "replicated KV heads": Plan(tp=4, sequence_parallel=True),
    "GPipe": Plan(pp=2, schedule="gpipe", num_micro_batches=4),
    "1F1B": Plan(pp=4, num_micro_batches=6),
    "interleaved": Plan(pp=2, schedule="interleaved", chunks=2, num_micro_batches=4),
    "ZB-H1": Plan(pp=2, schedule="zb-h1", num_micro_batches=4),
    "recompute all": Plan(recompute="full"),
    "recompute norms": Plan(dp=2, zero=3, recompute="selective"),
    "dp x tp": Plan(dp=2, tp=2, zero=1, sequence_parallel=True),
    "dp x pp": Plan(dp=2, pp=2, zero=2, num_micro_batches=3),
    "pp x tp": Plan(pp=2, tp=2, recompute="full", num_micro_batches=2),
}


def job(name: str, precision: str = "mixed") -> Job:
    return Job(config=TINY, plan=PLANS[name], micro_batch_size=2, seq_len=16, precision=precision)
