"""The course's transformer as the stages of a pipeline.

    stage 0        embedding, its layers
    stages between          their layers
    last stage              its layers, norm, head

Layers go to stages in order, the first stages one more where they do not divide: 7 layers on 3
stages are 3, 2, 2. Names are those of the whole model ("layers.4.mlp.up_proj.weight"), so that a
checkpoint needs no translation.

A tied embedding is needed at both ends. Where they lie on two ranks each has a copy, and after
every step `sum_tied_gradients` adds up the two gradients: both are then that of the one weight, to
the same last bit. Where they lie on one rank (a V, or one rank) there is one weight.

Cost: b·T·D numbers a boundary, direction and micro-batch; V·D numbers each way for a tied
embedding, once a step.

Shapes: b rows of a micro-batch, T sequence, D width, V words.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.transformer import Transformer
from labkit.parallel.pipeline import Boundary, Schedule, Stage, split_layers
from labkit.parallel.pipeline.exchange import sum_shared


class TransformerStage(nn.Module):
    """Some layers of a Transformer, with the embedding before or the head behind them at the ends.

    Args:
        model: the whole; its modules are taken over, not copied.
        layers: numbers of the layers.
    """

    def __init__(self, model: Transformer, layers: range) -> None:
        super().__init__()
        self.config = model.config
        self.is_first = layers.start == 0
        self.is_last = layers.stop == model.config.num_layers
        if self.is_first or (self.is_last and model.config.tied):
            self.embed_tokens: nn.Embedding = model.embed_tokens
        self.layers = nn.ModuleDict({str(number): model.layers[number] for number in layers})
        if self.is_last:
            self.norm = model.norm
            if not model.config.tied:
                self.lm_head: nn.Linear = model.lm_head

    @property
    def tied_weight(self) -> torch.Tensor | None:
        """The embedding that is the head too, on the stages that use it."""
        if not (self.config.tied and (self.is_first or self.is_last)):
            return None
        return self.embed_tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [b, T] on the first stage, else [b, T, D], to [b, T, D] or at last [b, T, V]."""
        if self.is_first:
            x = self.embed_tokens(x)  # [b, T, D]
        positions = torch.arange(x.shape[1], device=x.device)
        frequencies = rope_frequencies(self.config).to(x.device)
        cos, sin = rope_table(positions, frequencies, x.dtype)
        for layer in self.layers.values():
            x = layer(x, cos, sin)  # [b, T, D]
        if not self.is_last:
            return x
        head = self.embed_tokens if self.config.tied else self.lm_head
        return nn.functional.linear(self.norm(x), head.weight)  # [b, T, V]


def pipeline_stages(
    model: Transformer, schedule: Schedule, group: dist.ProcessGroup, tokens: tuple[int, int]
) -> list[Stage]:
    """This rank's stages, by chunk; drop the model afterwards, and the other layers go.

    Args:
        model: with the same weights on every rank.
        schedule: decides how many stages there are, and which lie here.
        group: the pipeline.
        tokens: (b, T) of one micro-batch.

    Raises:
        ValueError: with fewer layers than stages, or a sequence that the model cannot take.
    """
    if tokens[1] > model.config.max_seq_len:
        raise ValueError(f"{tokens[1]} tokens, but max_seq_len is {model.config.max_seq_len}")
    parts = split_layers(model.config.num_layers, schedule.num_stages)
    rank, dtype = dist.get_rank(group), model.embed_tokens.weight.dtype
    stages = []
    for chunk in range(schedule.num_stages_per_rank):
        number = schedule.stage(rank, chunk)
        if number == 0:
            takes = Boundary(shape=tokens, dtype=torch.int64)
        else:
            takes = Boundary(shape=(*tokens, model.config.hidden_size), dtype=dtype)
        stages.append(Stage(TransformerStage(model, parts[number]), takes))
    return stages


def sum_tied_gradients(
    stages: Sequence[Stage], schedule: Schedule, group: dist.ProcessGroup
) -> None:
    """After the run, before the optimizer: add up the gradients of the two copies of an embedding.

    Every rank may call it, whatever its stages and model; ranks without a copy do nothing.

    Args:
        stages: this rank's, from pipeline_stages.
        schedule: the one that ran.
        group: the pipeline.
    """
    first, last = schedule.rank_of(0), schedule.rank_of(schedule.num_stages - 1)
    rank = dist.get_rank(group)
    if first == last or rank not in (first, last):
        return
    for stage in stages:
        part = stage.module
        if isinstance(part, TransformerStage) and part.tied_weight is not None:
            sum_shared(part.tied_weight, last if rank == first else first, group)
