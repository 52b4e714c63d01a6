"""Embedding and output projection, split by vocabulary; and the embedding split by columns.

    own words of rank r:  r V' / tp  <=  v  <  (r + 1) V' / tp,      V' = V rounded up to tp

Padded rows are zero, get no gradient, and score -inf before softmax and argmax.

| what                     | forward                                 | backward            |
| ------------------------ | --------------------------------------- | ------------------- |
| HiddenParallelEmbedding  | one all-gather of B T D/tp              | own slice: nothing  |
| VocabParallelEmbedding   | one all-reduce of B T D                 | nothing             |
| VocabParallelHead        | nothing: logits stay split              | one all-reduce      |

The loss on split logits is in vocab_loss.py: the logits, B T V numbers, are never sent.

Source: Megatron-LM (arXiv 1909.08053), section 3.

Shapes: B batch, T sequence, D width, V words, V' words with padding.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import embedding, linear, pad

from labkit.comm.collectives import copy_to, gather_from, reduce_from
from labkit.comm.split import Split, check_divides, check_indices, place_in


class HiddenParallelEmbedding(nn.Module):
    """Every rank has D/tp numbers of every word; an all-gather puts the vectors together.

    Args:
        full: the whole embedding, with the same weights on every rank.
        group: the ranks that share it.

    Raises:
        ValueError: if the width does not divide, or the caller is not in the group.
    """

    def __init__(self, full: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        _check_plain(full)
        rank, size = place_in(group)
        check_divides("hidden columns", full.embedding_dim, size)
        split = Split(dim=1, size=full.embedding_dim, parts=size)
        self.group, self.splits = group, {"weight": split}
        self.weight = nn.Parameter(split.cut(full.weight, rank, size), full.weight.requires_grad)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [B, T, D].

        Raises:
            ValueError: for a token that is no word.
        """
        check_indices(tokens, len(self.weight))
        return gather_from(embedding(tokens, self.weight), self.group, -1)


class VocabParallelEmbedding(nn.Module):
    """Every rank has the vectors of V'/tp words, adds zeros for the others, and all are summed.

    Args:
        full, group: as above; any number of words.
        leave: how the parts of a sum become the output; sequence parallelism scatters them.
    """

    def __init__(
        self,
        full: nn.Embedding,
        group: dist.ProcessGroup,
        *,
        leave: Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor] = reduce_from,
    ) -> None:
        super().__init__()
        _check_plain(full)
        rank, size = place_in(group)
        split = Split(dim=0, size=full.num_embeddings, parts=size)
        self.group, self.leave, self.splits = group, leave, {"weight": split}
        self.num_words = full.num_embeddings
        self.weight = nn.Parameter(split.cut(full.weight, rank, size), full.weight.requires_grad)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [B, T, D], or what `leave` makes of it.

        Raises:
            ValueError: for a token that is no word. Every rank holds all tokens, so all raise.
        """
        local, mine = self.splits["weight"].locate(tokens, *place_in(self.group))
        vectors = embedding(local, self.weight).masked_fill(~mine.unsqueeze(-1), 0.0)
        return self.leave(vectors, self.group)  # from [B, T, D] partial over tp


class VocabParallelHead(nn.Module):
    """The output projection: every rank's logits for its own words.

    Args:
        full: the whole layer, without a bias; or the split embedding, to share its parameter.
        group: the ranks that share it.
    """

    def __init__(self, full: nn.Linear | VocabParallelEmbedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        rank, size = place_in(group)
        if isinstance(full, VocabParallelEmbedding):
            self.num_words, self.weight = full.num_words, full.weight
        elif full.bias is not None:
            raise ValueError(f"a head of {full.out_features} words with a bias: it has no place")
        else:
            split = Split(dim=0, size=full.out_features, parts=size)
            self.num_words = full.out_features
            own = split.cut(full.weight, rank, size)
            self.weight = nn.Parameter(own, full.weight.requires_grad)
        self.group = group
        self.splits = {"weight": Split(dim=0, size=self.num_words, parts=size)}
        self.num_own = self.splits["weight"].own_size(rank, size)

    @property
    def own_rows(self) -> torch.Tensor:
        """The rows that are words: a gradient reaches no other."""
        return self.weight[: self.num_own]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, D], the same on every rank; returns [B, T, V'/tp]."""
        return self.pad(linear(copy_to(x, self.group), self.own_rows))

    def pad(self, logits: torch.Tensor) -> torch.Tensor:
        """Fill up the logits of own words with -inf, so that all ranks have V'/tp."""
        return pad(logits, (0, len(self.weight) - self.num_own), value=float("-inf"))


def _check_plain(full: nn.Embedding) -> None:
    for name, plain in (("padding_idx", None), ("max_norm", None), ("sparse", False)):
        if (value := getattr(full, name)) != plain:
            raise ValueError(f"an embedding with {name}={value}: only {plain} can be split")
