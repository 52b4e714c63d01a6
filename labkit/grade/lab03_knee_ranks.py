"""Real runs of bucketed data parallelism, to be replayed. No learner takes part.

Layers have no bias and the input wants a gradient too. So the backward pass of every layer takes
twice as long as its forward pass, and equal layers make equal buckets, ready at equal distances.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

from labkit.measure.events import Event
from labkit.measure.log import EventLog
from labkit.parallel.data import BucketedDataParallel

# Widths from layer to layer, and how often the forward pass runs: twice with an evaluation before.
RUNS = {
    "1 layer": ([32] * 2, 1),
    "4 layers": ([16] * 5, 1),
    "8 layers": ([16] * 9, 1),
    "4 layers, two forwards": ([16] * 5, 2),
    "layers that differ": ([16, 24, 12, 20, 14, 18], 1),
}
SAMPLES = 8


def record_runs(world: dist.ProcessGroup) -> dict[str, list[Event]]:
    """This rank's events in one step of each run, with a mark where backward begins."""
    logs = {}
    for name, (widths, forwards) in RUNS.items():
        layers = [nn.Linear(*pair, bias=False, dtype=torch.float64) for pair in pairwise(widths)]
        largest = max(layer.weight.nbytes for layer in layers)
        model = BucketedDataParallel(nn.Sequential(*layers), world, bucket_bytes=largest)
        x = torch.ones(SAMPLES, widths[0], dtype=torch.float64, requires_grad=True)
        with EventLog() as log:
            with torch.no_grad():
                for _ in range(forwards - 1):
                    model(x)
            loss = model(x).sum()
            log.mark("backward")
            loss.backward()
            model.finish()
        logs[name] = log.events
    return logs
