"""A mixture of experts over ep, each expert split over tp.

    route all tokens of the tp group -> dispatch over ep -> own experts, split over tp -> combine

Every rank of a tp group routes the same tokens, and sends them over an ep group of its own. What
the experts return are partial sums, and so is the weighted answer: it is summed over tp once, as
that of a dense MLP. So are the gradients of the tokens. That of the router is a part of a sum too;
`partial_gradients` names it, and the step adds it up once, with those of the norms' gains.

Under sequence parallelism a rank has T/tp tokens between the layers. They are gathered before the
router, and the answers scattered.

Cost: that of labkit/parallel/expert.py for all T tokens on every rank of tp, and of tp the two
all-reduces of a dense MLP. Under sequence parallelism each is a gather and a reduce-scatter; what
was gathered is kept for backward.

Shapes: b rows of a micro-batch, T sequence, D width.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from labkit.comm.collectives import all_gather, all_reduce, copy_to, reduce_from, reduce_scatter
from labkit.model.moe import MoE, balance_experts
from labkit.parallel.expert import ExpertParallelMoE
from labkit.parallel.tensor import Layer, ParallelMLP


class ParallelExperts(ExpertParallelMoE):
    """This rank's experts of a layer, and of each its hidden units.

    Args:
        moe: the whole layer, with the same weights on every rank.
        ep_group: the ranks that share the experts.
        tp_group: the ranks that share an expert's matrices.
        sequence: a rank has T/tp tokens.
    """

    partial_gradients = ("router.weight",)

    def __init__(
        self,
        moe: MoE,
        ep_group: dist.ProcessGroup,
        tp_group: dist.ProcessGroup,
        *,
        sequence: bool,
    ) -> None:
        def split(expert: nn.Module) -> ParallelMLP:
            return ParallelMLP(expert, tp_group, enter=_products, leave=_partial_sum)

        super().__init__(moe, ep_group, make_expert=split)
        self.tp_group, self.sequence = tp_group, sequence

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [b, T, D], or [b, T/tp, D] under sequence parallelism, to the same."""
        if self.sequence:
            out = super().forward(all_gather(x, self.tp_group, 1))  # [b, T, D]
            return reduce_scatter(out, self.tp_group, 1)
        return reduce_from(super().forward(copy_to(x, self.tp_group)), self.tp_group)


def balance(stages: Sequence[nn.Module], rate: float, group: dist.ProcessGroup) -> None:
    """Move the bias of every layer by the load that all ranks with other tokens have counted.

    One all-reduce of E numbers for each layer of this rank.
    """
    for stage in stages:
        for layer in stage.modules():
            if isinstance(layer, ExpertParallelMoE):
                balance_experts(layer.local, rate, partial(all_reduce, group=group))


def _products(x: torch.Tensor, layers: Sequence[Layer], _: dist.ProcessGroup) -> list[torch.Tensor]:
    """Of one input with several column shards; it has entered with all tokens."""
    return [linear(x, weight, bias) for weight, bias in layers]


def _partial_sum(x: torch.Tensor, bias: torch.Tensor | None, _: dist.ProcessGroup) -> torch.Tensor:
    """It leaves with the whole answer; experts have no bias."""
    return x
