"""Expert parallelism: every rank holds E/ep experts, and tokens travel to them and back.

    route -> sort copies by expert -> dispatch -> own experts -> combine -> unsort -> weigh and add

Dispatch and combine are all-to-alls with as many rows as the routing asks for: nothing is padded
or dropped, and a token whose expert is at home is not sent. Row counts are exchanged first. On each
rank, a rank without tokens too, backward goes through both all-to-alls; otherwise the rest hang.

Gradients. An expert sees the tokens of its whole ep group, so its gradient is already a sum over
ep: sum it over dp (and cp), never over ep. Router and dense weights are replicated: sum theirs over
dp, cp and ep. Where a rank's loss is the mean over its own tokens, the divisor of both is
dp · cp · ep. Dividing experts' by dp · cp alone leaves them ep times too large.

Cost: with even routing of T tokens of D numbers of w bytes, a rank sends (ep−1)/ep k T D w bytes in
each of two all-to-alls forward and two backward, and 8 (ep−1) E/ep bytes of counts.
Sources: GShard (arXiv 2006.16668), section 3; MegaBlocks (arXiv 2211.15841), for no drops.

Shapes: T tokens of this rank, D width, E experts, k choices, R rows that arrive.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import all_reduce, all_to_all, copy_to, reduce_from
from labkit.comm.split import place_in


class ExpertParallelMoE(nn.Module):
    """This rank's experts of a layer, and the whole router.

    Args:
        moe: the whole layer, with the same weights on every rank: `experts`, an nn.ModuleList, and
            `choose(x)`, whose result has `indices` and `weights` [T, k].
        group: the ranks that share the experts; rank r holds E/ep of them from r E/ep on.
        make_expert: what is kept of an expert of the whole layer; a copy.

    Parameters have the names that they have in the whole layer: `experts.5` is the sixth of all.

    Raises:
        ValueError: if the experts do not divide over the group, or the caller is not in it.
    """

    def __init__(
        self,
        moe: nn.Module,
        group: dist.ProcessGroup,
        *,
        make_expert: Callable[[nn.Module], nn.Module] = copy.deepcopy,
    ) -> None:
        super().__init__()
        rank, size = place_in(group)
        experts: Any = moe.experts
        if len(experts) < size:
            raise ValueError(f"{len(experts)} experts over ep={size}: a rank needs one at least")
        if len(experts) % size:
            raise ValueError(f"{len(experts)} experts over ep={size}: they must divide")
        self.group, self.num_experts = group, len(experts)
        share = len(experts) // size
        mine = range(rank * share, (rank + 1) * share)
        self.experts = Experts({str(i): make_expert(experts[i]) for i in mine})
        local = copy.deepcopy(moe, {id(experts): self.experts})  # a router with own experts only
        for name, child in local.named_children():
            self.add_module(name, child)
        for name, buffer in local.named_buffers(recurse=False):
            kept = name not in local._non_persistent_buffers_set
            self.register_buffer(name, buffer, persistent=kept)
        self._local = (local,)  # in a tuple: all it has is registered above, by its own name

    @property
    def local(self) -> Any:
        """The layer given, with this rank's experts only."""
        return self._local[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., D], tokens of this rank, to [..., D]; every rank of the group has to call it.

        Raises:
            ValueError: on every rank, and before a token is sent, if a score of any rank is nan.
        """
        return self.mix(x, self.route(x))

    def route(self, x: torch.Tensor) -> Any:
        """The layer's own choice for x; numbers of experts are those of the whole layer."""
        return self.local.choose(x)  # type: ignore[operator]

    def mix(self, x: torch.Tensor, routing: Any) -> torch.Tensor:
        """Every token through its experts, wherever they are, and the answers added by weight."""
        num_slots = routing.indices.shape[1]
        tokens, chosen = x.reshape(-1, x.shape[-1]), routing.indices.flatten()  # [T, D], [T k]
        order = chosen.argsort(stable=True)  # by expert, so by rank
        rows = tokens[order // num_slots]  # [T k, D]
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows.requires_grad_()  # backward has to reach dispatch on every rank, or on none

        counts = chosen.bincount(minlength=self.num_experts)  # [E]
        lost = routing.weights.isnan().any(-1).sum()
        # Negative counts say how many scores were lost: all ranks hear it, and it costs no byte.
        arriving = all_to_all(counts.where(lost == 0, -lost), self.group)
        _check_scores(arriving := arriving.unflatten(0, (-1, len(self.experts))))
        there = counts.view(arriving.shape).sum(1).tolist()
        here = arriving.sum(1).tolist()  # from each rank

        received = all_to_all(rows, self.group, there, here)  # [R, D]
        answers = self.experts(received, arriving)  # [R, D]
        returned = all_to_all(answers, self.group, here, there)  # [T k, D]

        copies = returned[order.argsort()].unflatten(0, routing.indices.shape)  # [T, k, D]
        weights = routing.weights.to(x.dtype).unsqueeze(-1)  # [T, k, 1]
        out = weights[:, 0] * copies[:, 0]
        for slot in range(1, num_slots):  # in the order of k, whoever answered first
            out = out + weights[:, slot] * copies[:, slot]
        return out.view(x.shape)


class Experts(nn.ModuleDict):
    """This rank's experts, by their numbers in the whole layer."""

    def forward(self, rows: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
        """Rows [R, D] by source, then expert; arriving [ep, E/ep] counts them so."""
        expert = torch.arange(arriving.shape[1], device=rows.device).repeat(len(arriving))
        order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)  # [R]
        parts = rows[order].split(arriving.sum(0).tolist())
        # An expert without rows runs too: its gradients are zeros, not None.
        answers = [f(part) for f, part in zip(self.values(), parts, strict=True)]
        return torch.cat(answers)[order.argsort()]


def _check_scores(arriving: torch.Tensor) -> None:
    """Raise a ValueError if a rank sent how many of its scores are nan in the place of counts."""
    told = [f"{-n} tokens of group rank {rank}" for rank, n in enumerate(arriving[:, 0]) if n < 0]
    if told:
        raise ValueError(f"router scores are nan for {', '.join(told)}")


class Balance(NamedTuple):
    """How evenly a group's tokens are spread."""

    counts: torch.Tensor  # [E] copies of all ranks; has no gradient
    loss: torch.Tensor  # the auxiliary loss of all ranks' tokens, the same number on each


def balance(routing: Any, group: dist.ProcessGroup) -> Balance:
    """Counts and auxiliary loss E Σ f P over the tokens of a whole group.

    A mean of the ranks' losses would be another number: f and P are means over all tokens, and a
    mean of products is not the product of means. So sums are exchanged before the product. Every
    rank adds the result to its own loss; the gradient is right under the divisor above.

    Two all-reduces of E numbers forward, one backward.

    Args:
        routing: `indices` [T, k] and `scores` [T, E].
        group: ep alone, or the joint group of all ranks that hold other tokens.
    """
    num_experts = routing.scores.shape[1]
    num_slots = routing.indices.shape[1]
    counts = all_reduce(routing.indices.flatten().bincount(minlength=num_experts), group)  # [E]
    # copy_to: each rank has the loss in its own, so gradients of all ranks are summed on the way.
    sums = copy_to(reduce_from(routing.scores.sum(0), group), group)  # [E]
    copies = counts.sum().clamp(min=1)
    load, probability = (counts / copies).to(sums.dtype), sums * num_slots / copies
    return Balance(counts=counts, loss=num_experts * (load * probability).sum())
