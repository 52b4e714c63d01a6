"""expect: lab05.layer.shape

A rank returns its columns.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import embedding


class HiddenEmbedding(nn.Module):
    def __init__(self, table, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(table.chunk(tp, dim=1)[place].clone())

    def forward(self, words):
        return embedding(words, self.weight)
