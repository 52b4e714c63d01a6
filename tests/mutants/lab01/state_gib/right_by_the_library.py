"""With the course's own recipe."""

import torch

from labkit.cost.memory import MIXED, training_memory_bytes
from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(config).parameters())
    held = training_memory_bytes(count, stage=0, group_size=1, recipe=MIXED)
    return held.state_bytes / 1024**3
