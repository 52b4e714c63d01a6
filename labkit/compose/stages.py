"""The course's transformer in stages whose layers are split over a tensor-parallel group.

    stage 0        embedding (words), its layers
    last stage     its layers, norm, head (words)

A stage is what pipeline_parallel.py makes of whole layers, here of this rank's shards of them. With
one stage it is the whole model, and with one tp rank the layers are whole: the same code.

Under sequence parallelism a norm's gain sees this rank's tokens only. Backward leaves its gradient
as it is, a part of a sum. `partial_gradients` says which parameters these are, and one all-reduce a
step adds them up for all micro-batches.

Cost: that of tensor_parallel.py for its layers, in each micro-batch, without the gains.

Shapes: b rows of a micro-batch, T sequence, D width, V' words with padding.
"""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import reduce_from
from labkit.comm.mesh import Mesh
from labkit.compose.context import with_context
from labkit.compose.experts import ParallelExperts
from labkit.compose.plan import Plan
from labkit.compose.tensor_parallel import layout_of, split_block
from labkit.model.attention import Attention
from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.moe import MoE
from labkit.model.transformer import IGNORE, Transformer
from labkit.parallel.context import positions
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
        mesh: its tp ranks share each layer, its cp ranks the tokens, its ep ranks the experts.
        kv_group: those that hold the same KV head, where there are more ranks than KV heads.
        plan: what is done between the layers, and what runs again.
    """

    def __init__(
        self,
        model: Transformer,
        layers: range,
        mesh: Mesh,
        kv_group: dist.ProcessGroup | None,
        plan: Plan,
    ) -> None:
        super().__init__()
        group, sequence = mesh.group("tp"), plan.sequence_parallel
        self.config, self.group, self.sequence = model.config, group, sequence
        self.cp_group, self.recompute = mesh.group("cp"), plan.recompute
        self.is_first = layers.start == 0
        self.is_last = layers.stop == model.config.num_layers
        if self.is_first or (self.is_last and model.config.tied):
            leave: Callable[..., torch.Tensor] = scatter_sum if sequence else reduce_from
            self.embed_tokens = VocabParallelEmbedding(model.embed_tokens, group, leave=leave)
        self.layers = nn.ModuleDict(
            {str(i): _split(model.layers[i], mesh, kv_group, plan) for i in layers}
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

    def partial_gradients(self) -> set[str]:
        """Parameters of which backward leaves a part of the gradient: tp adds the parts up.

        Gains see this rank's tokens only, under sequence parallelism; routers see what its shard of
        the experts made of a token.
        """
        ends: tuple[str, ...] = ParallelExperts.partial_gradients
        if self.sequence:
            ends += tuple(f"{norm}.weight" for norm in NORMS)
        last = {"norm.weight"} if self.sequence else set()
        return {name for name in self.layout if name.endswith(ends) or name in last}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [b, T] on the first stage, else [b, T, D], to [b, T, D] or at last [b, T, V'/tp].

        T are this rank's tokens, where cp shares a row; [b, T, D] is [b, T/tp, D] under sequence
        parallelism.
        """
        length = x.shape[1]
        if self.is_first:
            x = self.embed_tokens(x)  # [b, T, D]
        elif self.sequence:
            length *= dist.get_world_size(self.group)
        places = self._positions(length, x.device)
        frequencies = rope_frequencies(self.config).to(x.device)
        cos, sin = rope_table(places, frequencies, x.dtype)
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

    def _positions(self, length: int, device: torch.device) -> torch.Tensor:
        """Where this rank's tokens stand in their rows."""
        size = dist.get_world_size(self.cp_group)
        if size == 1:  # zigzag would ask for an even number of tokens
            return torch.arange(length, device=device)
        return positions(length * size, self.cp_group, device=device)

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


def _split(
    block: nn.Module, mesh: Mesh, kv_group: dist.ProcessGroup | None, plan: Plan
) -> nn.Module:
    """This rank's shard of a block: of attention over cp too, of experts over ep too."""
    group, mlp = mesh.group("tp"), block.get_submodule("mlp")
    attention = cast(Attention, block.get_submodule("self_attn"))
    experts = None
    if isinstance(mlp, MoE):
        borders = mesh.group("ep"), group
        experts = ParallelExperts(mlp, *borders, sequence=plan.sequence_parallel)
    return split_block(
        block,
        group,
        kv_group,
        plan.sequence_parallel,
        attention=with_context(attention, mesh.group("cp"), plan.context),
        mlp=experts,
    )
