"""expect: lab05.layer.weight_grad_times

The other gather: backward it sums gradients that are whole.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import embedding

from labkit.comm.collectives import all_gather


class HiddenEmbedding(nn.Module):
    def __init__(self, table, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(table.chunk(tp, dim=1)[place].clone())

    def forward(self, words):
        return all_gather(embedding(words, self.weight), self.group, dim=-1)
