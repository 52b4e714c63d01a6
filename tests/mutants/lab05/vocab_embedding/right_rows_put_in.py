"""Zeros, and the own rows put into them."""

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import reduce_from


class VocabEmbedding(nn.Module):
    def __init__(self, table, group):
        super().__init__()
        self.group = group
        tp, num_rows = dist.get_world_size(group), -(-len(table) // dist.get_world_size(group))
        self.start = dist.get_rank(group) * num_rows
        padded = torch.cat([table, table.new_zeros(tp * num_rows - len(table), table.shape[1])])
        self.weight = nn.Parameter(padded[self.start : self.start + num_rows].clone())

    def forward(self, words):
        local = words - self.start
        own = (local >= 0) & (local < len(self.weight))
        rows = self.weight.new_zeros(*words.shape, self.weight.shape[1])
        return reduce_from(rows.masked_scatter(own[..., None], self.weight[local[own]]), self.group)
