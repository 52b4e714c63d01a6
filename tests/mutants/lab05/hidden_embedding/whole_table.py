"""expect: lab05.layer.shard_whole

Every rank holds the table.
"""

from torch import nn
from torch.nn.functional import embedding


class HiddenEmbedding(nn.Module):
    def __init__(self, table, group):
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(table.clone())

    def forward(self, words):
        return embedding(words, self.weight)
