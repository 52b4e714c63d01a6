"""The course's transformer in stages whose layers are split over a tensor-parallel group.

    stage 0        embedding (words), its layers
    last stage     its layers, norm, head (words)

A stage is what pipeline_parallel.py makes of whole layers, here of this rank's shards of them. With
one stage it is the whole model, and with one tp rank the layers are whole: the same code.

Under sequence parallelism a norm's gain sees this rank's tokens only. Backward leaves its gradient
as it is, a part of a sum. `gains` says which parameters these are, and one all-reduce a step adds
them up for all micro-batches.

Cost: that of tensor_parallel.py for its layers, in each micro-batch, without the gains.

Shapes: b rows of a micro-batch, T sequence, D width, V' words with padding.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import reduce_from
from labkit.compose.tensor_parallel import layout_of, split_block
from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.transformer import IGNORE, Transformer
from labkit.parallel.recompute import recomputing
from labkit.parallel.sequence import gather_in, scatter_sum
from labkit.parallel.vocab import VocabParallelEmbedding, VocabParallelHead
from labkit.parallel.vocab_loss import vocab_parallel_cross_entropy

NORMS = ("input_layernorm", "post_attention_layernorm")


class ParallelStage(nn.Module):
    """This rank's shards of some layers, with the embedding or the head at the ends.

    Args:
        model: the whole; shards are copied out of it.
        layers: numbers of the layers.
        group: the ranks that share each layer.
        kv_group: those that hold the same KV head, where there are more ranks than KV heads.
        sequence: hold T/tp tokens between attention and MLP.
        recompute: "none", "selective" or "full".
    """

    def __init__(
        self,
        model: Transformer,
        layers: range,
        group: dist.ProcessGroup,
        kv_group: dist.ProcessGroup | None,
        *,
        sequence: bool,
        recompute: str,
    ) -> None:
        super().__init__()
        self.config, self.group, self.sequence = model.config, group, sequence
        self.recompute = recompute
        self.is_first = layers.start == 0
        self.is_last = layers.stop == model.config.num_layers
        if self.is_first or (self.is_last and model.config.tied):
            leave: Callable[..., torch.Tensor] = scatter_sum if sequence else reduce_from
            self.embed_tokens = VocabParallelEmbedding(model.embed_tokens, group, leave=leave)
        self.layers = nn.ModuleDict(
            {str(i): split_block(model.layers[i], group, kv_group, sequence) for i in layers}
        )
        if self.is_last:
            self.norm = copy.deepcopy(model.norm)
            head = self.embed_tokens if model.config.tied else model.lm_head
            self.lm_head = VocabParallelHead(head, group)
        self.layout = layout_of(self)

    @property
    def tied_weight(self) -> nn.Parameter | None:
        """The embedding that is the head too, on the stages that use it."""
        if not (self.config.tied and (self.is_first or self.is_last)):
            return None
        return self.embed_tokens.weight

    def gains(self) -> set[str]:
        """Parameters of which backward leaves the gradient of this rank's tokens only."""
        if not self.sequence:
            return set()
        ends = tuple(f"{norm}.weight" for norm in NORMS)
        return {name for name in self.layout if name.endswith(ends) or name == "norm.weight"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [b, T] on the first stage, else [b, T, D], to [b, T, D] or at last [b, T, V'/tp].

        Under sequence parallelism [b, T, D] is [b, T/tp, D].
        """
        length = x.shape[1]
        if self.is_first:
            x = self.embed_tokens(x)  # [b, T, D]
        elif self.sequence:
            length *= dist.get_world_size(self.group)
        positions = torch.arange(length, device=x.device)
        frequencies = rope_frequencies(self.config).to(x.device)
        cos, sin = rope_table(positions, frequencies, x.dtype)
        with recomputing(self._units()):
            for layer in self.layers.values():
                x = layer(x, cos, sin)  # [b, T, D]
        return self._logits(self.norm(x)) if self.is_last else x

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum of the cross-entropy over the scored targets [b, T]; on every rank of the group."""
        return vocab_parallel_cross_entropy(
            logits,
            targets,
            self.group,
            num_words=self.config.vocab_size,
            ignore_index=IGNORE,
            reduction="sum",
        )

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if not self.sequence:
            return self.lm_head(x)
        return self.lm_head.pad(gather_in(x, [(self.lm_head.own_rows, None)], self.group)[0])

    def _units(self) -> list[nn.Module]:
        """The modules that run again in backward, as in labkit.train."""
        layers: list[Any] = list(self.layers.values())
        if self.recompute == "selective":
            return [layer.get_submodule(norm) for layer in layers for norm in NORMS]
        return layers if self.recompute == "full" else []
