"""What listening costs: torch DDP's training step with a CommLedger open and without any hook.

    python -m labkit bench hook

Two gloo ranks train a transformer of 4 layers (width 128, 4 heads, 8 × 64 tokens), with DDP's own
bucket size, which is what is judged, and with buckets a hundredth of that: many more calls a step.
Blocks of 3 steps are timed in interleaved pairs. Installing the hook is left out
and printed by itself: a ledger is opened once around many steps.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit.bench.stats import Ratio, interleaved, row
from labkit.launch import run_ranks
from labkit.measure import hook
from labkit.measure.ledger import CommLedger

BOUND = 1.02
PAIRS = 24
BLOCK = 3


def step_ratio(bucket_cap_mb: float, pairs: int = PAIRS) -> Ratio:
    """Time of steps with a ledger over time of steps without a hook, the slower rank's of two."""
    ratios = run_ranks(_steps, 2, bucket_cap_mb, pairs, timeout=300.0)
    return max(ratios, key=lambda ratio: ratio.low)


def installation_s(repeats: int = 21) -> float:
    """Median time from no hook to a hook that hears every call."""
    times_s = []
    for _ in range(repeats):
        start = time.perf_counter()
        with hook.subscribed(print):
            times_s.append(time.perf_counter() - start)
    return median(times_s)


def _steps(group: dist.ProcessGroup, bucket_cap_mb: float, pairs: int) -> Ratio:
    for subscriber in hook._HOOK.subscribers:  # the launcher listens too: not in this comparison
        hook.unsubscribe(subscriber.issued)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 64, 128)  # [B, T, D]

    def block_s(listening: Callable[[], Any]) -> float:
        with listening():
            dist.barrier(group)
            start = time.perf_counter()
            for _ in range(BLOCK):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return time.perf_counter() - start

    block_s(nullcontext)  # DDP rebuilds its buckets in the second step
    return interleaved(CommLedger, nullcontext, pairs, warmup=0, clock=block_s)


def main() -> dict[str, Any]:
    """Print and return the ratios with their intervals, and the time to install."""
    ratio, small, install_s = step_ratio(25.0), step_ratio(0.25), installation_s()
    print(row("DDP step, ledger open / no hook", ratio, BOUND))
    print(row("the same with buckets of 0.25 MB", small))
    print(f"{'installing the hook':<40} {1e3 * install_s:.2f} ms")
    return {"step": vars(ratio), "step_small_buckets": vars(small), "installation_s": install_s}
