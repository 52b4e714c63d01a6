"""The course's model with every layer split over a tensor-parallel group.

    embedding (words) -> [norm -> attention (heads) -> norm -> MLP (hidden units)] -> norm -> head

Parameters keep the names they have in the whole model, so a state is gathered, or cut, name by
name; `layout()` tells how each one is cut. With `sequence=True` embedding, norms and residuals hold
T/tp tokens a rank.

Cost of a step with L layers, S = B T D numbers of activations: 4 L + 2 all-reduces of S (two in a
layer each way, the embedding's forward, the head's backward). With sequence parallelism each is a
reduce-scatter or an all-gather, 2 L + 1 gathers come again in backward, and the gains of all norms
take one all-reduce together. The loss adds two all-reduces of at most 2 B T numbers. Where there
are fewer KV heads than ranks, each layer has one more backward, over the replicas.

Shapes: B batch, T sequence, D width, V' words with padding.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from labkit.comm.collectives import reduce_from
from labkit.comm.replicated import copy_all_to
from labkit.comm.split import Split, check_divides, place_in, replica_group
from labkit.model.attention import KVCache
from labkit.model.config import ModelConfig
from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.transformer import IGNORE, Transformer
from labkit.parallel.sequence import check_tokens, gather_in, scatter_out, scatter_sum
from labkit.parallel.tensor import ParallelAttention, ParallelMLP, copy_in, reduce_out
from labkit.parallel.vocab import VocabParallelEmbedding, VocabParallelHead
from labkit.parallel.vocab_loss import vocab_parallel_argmax, vocab_parallel_cross_entropy


class TensorParallelTransformer(nn.Module):
    """This rank's shard of a Transformer: tokens to split logits, or to the loss."""

    def __init__(self, model: Transformer, group: dist.ProcessGroup, *, sequence: bool) -> None:
        super().__init__()
        self.config, self.group, self.sequence = model.config, group, sequence
        kv_group = kv_group_of(model.config, group)
        leave = scatter_sum if sequence else reduce_from
        self.embed_tokens = VocabParallelEmbedding(model.embed_tokens, group, leave=leave)
        self.layers = nn.ModuleList(
            split_block(block, group, kv_group, sequence) for block in model.layers
        )
        self.norm = copy.deepcopy(model.norm)
        tied = model.config.tied
        self.lm_head = VocabParallelHead(self.embed_tokens if tied else model.lm_head, group)

    def forward(self, tokens: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """Split logits [B, T, V'/tp] for tokens [B, T], which are the same on every rank.

        Raises:
            ValueError: if the tokens pass the model's longest sequence, are no words, or do not
                divide over the group under sequence parallelism.
        """
        start = 0 if cache is None else cache.length
        end = start + tokens.shape[1]
        if end > self.config.max_seq_len:
            raise ValueError(f"{end} tokens, but max_seq_len is {self.config.max_seq_len}")
        if self.sequence:
            check_tokens(tokens.shape[1], self.group)
        positions = torch.arange(start, end, device=tokens.device)
        frequencies = rope_frequencies(self.config).to(tokens.device)
        x = self.embed_tokens(tokens)  # [B, T, D], or [B, T/tp, D] under sequence parallelism
        cos, sin = rope_table(positions, frequencies, x.dtype)
        gains = self._gains()
        for layer, own in zip(self.layers, gains, strict=False):
            x = functional_call(layer, own, (x, cos, sin, cache))
        x = functional_call(self.norm, gains[-1], (x,))
        if not self.sequence:
            return self.lm_head(x)
        return self.lm_head.pad(gather_in(x, [(self.lm_head.own_rows, None)], self.group)[0])

    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        """Cross-entropy in nats against targets [B, T], without those of IGNORE; on every rank."""
        return vocab_parallel_cross_entropy(
            self(tokens),
            targets,
            self.group,
            num_words=self.config.vocab_size,
            ignore_index=IGNORE,
            reduction=reduction,
        )

    def likeliest(self, tokens: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """The likeliest next word after each position, [B, T]; logits are not gathered."""
        return vocab_parallel_argmax(self(tokens, cache), self.group)

    def layout(self) -> dict[str, Split]:
        """How each parameter of the whole model is cut, by name."""
        return layout_of(self)

    def _gains(self) -> list[dict[str, torch.Tensor]]:
        """Gains of the norms, of each layer and of the last; summed over the tokens' shards."""
        norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
        if not self.sequence:
            return [{} for _ in range(len(self.layers) + 1)]
        gains = [layer.get_parameter(name) for layer in self.layers for name in norms]
        *of_layers, last = copy_all_to([*gains, self.norm.weight], self.group)
        pairs = zip(of_layers[::2], of_layers[1::2], strict=True)
        return [dict(zip(norms, pair, strict=True)) for pair in pairs] + [{"weight": last}]


def tensor_parallel(
    model: Transformer, group: dist.ProcessGroup, *, sequence: bool = False
) -> TensorParallelTransformer:
    """Split a model over a group: each rank keeps copies of its shards; the model is left alone.

    Args:
        model: the whole model, with the same weights on every rank; of group rank 0 after
            `labkit.comm.pieces.broadcast_state`.
        group: the ranks that share each layer.
        sequence: keep T/tp tokens a rank between attention and MLP.

    Raises:
        ValueError: if heads, KV heads or hidden units do not divide, or the caller is not in the
            group. Nothing has been sent by then.
    """
    return TensorParallelTransformer(model, group, sequence=sequence)


def layout_of(module: nn.Module) -> dict[str, Split]:
    """How each parameter is cut, by name; those of which no module tells are whole."""
    found = {}
    for name, parameter in module.named_parameters():
        owner, _, last = name.rpartition(".")
        splits: Mapping[str, Split] = getattr(module.get_submodule(owner), "splits", {})
        found[name] = splits.get(last, Split(size=parameter.shape[0]))
    return found


def shard_state(
    full: Mapping[str, torch.Tensor], layout: Mapping[str, Split], rank: int, world_size: int
) -> dict[str, torch.Tensor]:
    """One rank's tensors out of a whole state: plain tensors, no group needed.

    Raises:
        ValueError: if names or sizes differ from the layout's.
    """
    _check_names(full, layout, "the state")
    return {name: layout[name].cut(full[name], rank, world_size) for name in layout}


def gather_state(
    shards: Sequence[Mapping[str, torch.Tensor]], layout: Mapping[str, Split]
) -> dict[str, torch.Tensor]:
    """The whole state out of those of all ranks, in rank order: the original, bit for bit.

    Raises:
        ValueError: if names differ from the layout's, or ranks differ in what they replicate.
    """
    for rank, shard in enumerate(shards):
        _check_names(shard, layout, f"the state of rank {rank}")
    return {name: layout[name].join([shard[name] for shard in shards]) for name in layout}


def split_block(
    block: nn.Module,
    group: dist.ProcessGroup,
    kv_group: dist.ProcessGroup | None,
    sequence: bool,
    *,
    attention: nn.Module | None = None,
    mlp: nn.Module | None = None,
) -> nn.Module:
    """The block with attention and MLP split; its forward is the model's own.

    Under sequence parallelism the gains of its two norms are left to the caller to sum.

    Args:
        attention: to be split in the place of the block's own.
        mlp: takes the place of the block's own as it is; it has been split.
    """
    enter, leave = (gather_in, scatter_out) if sequence else (copy_in, reduce_out)
    borders: dict[str, Any] = dict(enter=enter, leave=leave)
    own, own_mlp = block.get_submodule("self_attn"), block.get_submodule("mlp")
    if mlp is None:
        mlp = ParallelMLP(own_mlp, group, **borders)
    split = {
        id(own): ParallelAttention(attention or own, group, kv_group=kv_group, **borders),
        id(own_mlp): mlp,
    }
    return copy.deepcopy(block, split)  # a deep copy that finds these in place of its own two


def kv_group_of(config: ModelConfig, group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """The ranks with this rank's KV head, where it has replicas: one group for all layers."""
    size, num_kv_heads = place_in(group)[1], config.num_kv_heads
    check_divides("heads", config.num_heads, size)
    check_divides("hidden units", config.intermediate_size, size)
    if num_kv_heads < size and size % num_kv_heads == 0:
        return replica_group(group, num_kv_heads)
    return None  # ParallelAttention refuses numbers that do not divide


def _check_names(state: Mapping[str, Any], layout: Mapping[str, Split], what: str) -> None:
    if odd := sorted(set(state) ^ set(layout)):
        raise ValueError(
            f"{what} has {len(state)} tensors, the layout {len(layout)}; they differ in {odd[0]}"
        )
