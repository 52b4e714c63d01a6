"""Simulated worlds of up to 1,024 ranks: seconds, memory of the process, and what they report.

    python -m labkit bench simulate

Each case runs in a process of its own, so that its memory is its own. Limits on two cores: 240 s
and 2 GB for 70B on 1,024 ranks, 60 s for 8B on 64. The four rows of ZeRO's figure 1 are the whole
7.5-billion model on 64 ranks, with the paper's gigabytes beside them.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

from labkit.compose.plan import Plan
from labkit.cost.architecture import Architecture, architecture
from labkit.cost.counting import num_parameters
from labkit.model.config import ModelConfig
from labkit.simulate.run import Job, model_config, simulate

PAPER_GB = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
FULL = dict(recompute="full")
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{f"zero-{stage}": ("zero-7.5b", 512, dict(dp=64, zero=stage)) for stage in PAPER_GB},
    "8b-64": ("llama3-8b", 4096, dict(dp=64, zero=3, **FULL)),
    "70b-1024-dp-tp": ("llama3-70b", 4096, dict(dp=128, tp=8, zero=3, **FULL)),
    "70b-1024-dp": ("llama3-70b", 4096, dict(dp=1024, zero=3, **FULL)),
}
LIMIT_S = {"8b-64": 60.0, "70b-1024-dp-tp": 240.0, "70b-1024-dp": 240.0}
LIMIT_RSS_BYTES = 2 * 10**9


def main() -> dict[str, Any]:
    """Print and return one row a case."""
    result = {}
    for name in CASES:
        command = [sys.executable, "-W", "ignore", "-m", "labkit.bench.simulate", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout)
        limit = f", limit {LIMIT_S[name]:.0f} s" if name in LIMIT_S else ""
        print(
            f"{name:<15} {row['seconds']:6.1f} s ({row['cpu_seconds']:.1f} s of one core{limit}), "
            f"{row['rss_bytes'] / 1e9:.2f} GB of memory; a rank holds "
            f"{row['state_bytes'] / 1e9:.2f} GB, at its peak {row['peak_bytes'] / 1e9:.2f} GB"
        )
        if name.startswith("zero-"):
            print(f"  at 7.5 billion {row['state_gb_of_7_5b']:.2f} GB, paper {row['paper_gb']} GB")
        result[name] = row
    return result


def run_case(name: str) -> dict[str, Any]:
    """One case in this process."""
    model, seq_len, layout = CASES[name]
    start = time.perf_counter()
    job = Job(config=_config(model), plan=Plan(**layout), seq_len=seq_len)
    [run] = simulate(job)
    seconds = time.perf_counter() - start
    state_bytes = run.held.state_bytes
    row = {
        "model": model,
        "seq_len": seq_len,
        "layout": layout,
        "ranks": job.plan.world_size,
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "state_bytes": state_bytes,
        "peak_bytes": run.peak.total_bytes,
        "peak_by_category": run.peak.by_category,
        "flops": run.flops,
        "calls": run.ledger.count(),
        "bytes_sent": run.ledger.bytes_sent(),
    }
    if name.startswith("zero-"):
        a_parameter = state_bytes / num_parameters(Architecture.of(job.config))
        row |= {"state_gb_of_7_5b": 7.5 * a_parameter, "paper_gb": PAPER_GB[job.plan.zero]}
    return row


def _config(name: str) -> ModelConfig:
    """A preset, or the shape that labkit.cost has of this name."""
    if name != "zero-7.5b":
        return model_config(name)
    sizes = architecture(name)
    return ModelConfig(
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        max_seq_len=2048,
    )


if __name__ == "__main__":
    print(json.dumps(run_case(sys.argv[1])))
