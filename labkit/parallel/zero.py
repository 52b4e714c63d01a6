"""ZeRO 1 and 2: the whole model on each rank, and a part of the optimizer's state on each.

Adam keeps 12 of the 16 bytes of a parameter in mixed precision: an fp32 copy and two moments. All
ranks of data parallelism would keep, and update, the same ones. Here a rank does it for its own
shard, and the sum of gradients is sent only to the rank that needs it.

    gradient shard = reduce-scatter(gradients);  weight shard = optimizer(weight shard, gradient
    shard);  weights = all-gather(weight shards)

| bytes a rank holds        | weights | gradients | state, K bytes a parameter |
| ------------------------- | ------- | --------- | -------------------------- |
| data parallelism          | S       | S         | K S                        |
| stage 1                   | S       | S         | K S / N                    |
| stage 2                   | S       | S / N     | K S / N                    |

Traffic: S = bytes of the parameters, padded; each rank sends (N-1)/N S for the gradients, of every
backward in stage 2, and (N-1)/N S for the weights: as much as an all-reduce. A norm to clip by and
a number of tokens cost one all-reduce of 8 bytes each.

    zero = ZeroOptimizer(module, partial(torch.optim.AdamW, lr=3e-4), group, stage=2)
    for batch in micro_batches:
        loss(module, batch).backward()
    zero.step()
    zero.zero_grad()

Micro-batches add up: stage 1 in p.grad, where each rank's own gradient stays; stage 2 in the shard,
and p.grad is None after backward. In stage 2 every rank runs backward equally often; a rank that
has no batch left in a step of one backward may skip it and call step(num_tokens=0).

The optimizer's update must be element-wise (labkit/comm/pieces.py). A shared parameter counts once,
a frozen one not at all, and one that no rank used is left alone.
Source: ZeRO (arXiv 1910.02054), sections 5 and 7.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.buckets import assign_buckets
from labkit.comm.pieces import (
    Options,
    Piece,
    broadcast_state,
    check_member,
    clip_pieces,
    divisor,
    group_pieces,
)
from labkit.comm.shards import (
    FlatLayout,
    Reduction,
    finish_reduce_scatter,
    flat_gradient,
    set_gradients,
    start_all_gather,
    start_reduce_scatter,
)

MIB = 2**20
MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class ZeroOptimizer:
    """Takes the optimizer's place; the module is used as it is.

    Args:
        module: what to train; values are taken from group rank 0. Its parameters are moved into
            flat buffers. Where they are bf16 or fp16 the optimizer updates an fp32 copy.
        make_optimizer: builds the optimizer of this rank's pieces from parameter groups, such as
            partial(torch.optim.AdamW, lr=3e-4). It stands in `optimizer`, for a schedule, say.
        group: the ranks that share the batch.
        stage: 1, or 2.
        clip_norm: largest norm of the whole gradient, or None.
        options: optimizer options of a parameter by its name and shape, such as no weight decay
            for vectors (labkit.comm.pieces.group_pieces).
        bucket_bytes: limit of a bucket. A bucket is sent, and cut into shards, as a whole.

    Raises:
        ValueError: for another stage or norm, or on a rank outside the group.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        group: dist.ProcessGroup,
        *,
        stage: int,
        clip_norm: float | None = None,
        options: Options | None = None,
        bucket_bytes: int = 4 * MIB,
    ) -> None:
        if stage not in (1, 2):
            raise ValueError(f"stage {stage}: ZeroOptimizer has 1 and 2, FullyShardedModel is 3")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}, it must be over 0")
        check_member(group)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("0 parameters of the module need a gradient: nothing to optimize")
        places = assign_buckets([p for _, p in named], bucket_bytes, reverse=True)
        broadcast_state([*module.parameters(), *module.buffers()], group)
        self.group = group
        self.stage = stage
        self.clip_norm = clip_norm
        self._buckets = [_Bucket([named[i] for i in place], group) for place in places]
        self.pieces = [piece for bucket in self._buckets for piece in bucket.pieces]
        self.optimizer = make_optimizer(group_pieces(self.pieces, options))
        self._num_launched = 0
        self._in_backward = False
        self._has_sum = False  # some backward of this step has been reduced
        for bucket in self._buckets if stage == 2 else []:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, bucket))

    def step(self, num_tokens: int | None = None) -> torch.Tensor | None:
        """Average the gradients, clip them, update this rank's shard, and gather the weights.

        Args:
            num_tokens: of this rank in this step, if losses are sums over tokens; else the average
                is that of the ranks.

        Returns:
            The norm before clipping; None without clip_norm.
        """
        self.finish(num_tokens)
        norm = None
        if self.clip_norm is not None:
            norm = clip_pieces(self.pieces, self.clip_norm, self.group)
        self.update()
        return norm

    @torch.no_grad()
    def finish(self, num_tokens: int | None = None) -> None:
        """The first half of a step: give each piece its part of the average gradient."""
        if not self._has_sum:
            self._reduce_the_rest()
        mean_of = divisor(num_tokens, self.group, self._buckets[0].weights.device)
        for bucket in self._buckets:
            bucket.give_gradients(mean_of)
        self._has_sum = False

    def update(self) -> None:
        """The second half: let the optimizer update the shard, and gather the weights."""
        self.optimizer.step()
        self.gather_weights()

    def zero_grad(self) -> None:
        """Forget the gradients, those of a backward that failed half-way too."""
        for bucket in self._buckets:
            bucket.forget()
        self._num_launched, self._in_backward, self._has_sum = 0, False, False

    @torch.no_grad()
    def gather_weights(self) -> None:
        """Overwrite the module's parameters by the shards of all ranks; after loading, too."""
        works = []
        for bucket in self._buckets:
            bucket.own.copy_(bucket.master)  # of the same memory: a copy onto itself
            works += start_all_gather(bucket.weights, self.group)
        for work in works:
            work.wait()

    def _ready(self, bucket: "_Bucket", parameter: torch.Tensor) -> None:
        """Autograd has just completed parameter.grad."""
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._reduce_the_rest)
        if bucket.num_missing == 0:
            raise RuntimeError("a gradient changed after its bucket was sent in this backward")
        bucket.num_missing -= 1
        while self._num_launched < len(self._buckets):
            if self._buckets[self._num_launched].num_missing > 0:
                return
            self._launch()

    def _launch(self) -> None:
        """Send the next bucket; the one before it arrives first, so that one is on its way."""
        bucket = self._buckets[self._num_launched]
        bucket.launch(self.group, keep=self.stage == 1)
        if self._num_launched > 0:
            self._buckets[self._num_launched - 1].arrive()
        self._num_launched += 1

    def _reduce_the_rest(self) -> None:
        """At the end of backward: send what waits for a gradient that does not come."""
        while self._num_launched < len(self._buckets):
            self._launch()
        self._buckets[-1].arrive()
        for bucket in self._buckets:
            bucket.num_missing = len(bucket.parameters)
        self._num_launched, self._in_backward, self._has_sum = 0, False, True


class _Bucket:
    """Parameters that travel together: weights [N s] of which `own` [s] is this rank's shard."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], group: dist.ProcessGroup) -> None:
        self.parameters = [parameter for _, parameter in named]
        self.rank = dist.get_rank(group)
        self.layout = FlatLayout(
            names=tuple(name for name, _ in named),
            shapes=tuple(parameter.shape for parameter in self.parameters),
            num_shards=dist.get_world_size(group),
        )
        self.weights = self.parameters[0].detach().new_zeros(self.layout.padded_numel)
        for view, parameter in zip(self.layout.views(self.weights), self.parameters, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.own = self.weights.view(self.layout.num_shards, -1)[self.rank]
        low = self.own.dtype in (torch.bfloat16, torch.float16)
        self.master = self.own.float() if low else self.own
        self.pieces: list[Piece] = self.layout.pieces(self.master, self.rank)
        self.gradient: torch.Tensor | None = None  # [s], the sum over ranks and micro-batches
        self.reduction: Reduction | None = None
        self.num_missing = len(self.parameters)

    def launch(self, group: dist.ProcessGroup, *, keep: bool) -> None:
        """Send the gradients to their owners, and drop them unless they are to be kept."""
        self.reduction = start_reduce_scatter(flat_gradient(self.layout, self.parameters), group)
        if not keep:
            for parameter in self.parameters:
                parameter.grad = None

    def arrive(self) -> None:
        """Add what the ranks sent to the gradient of this rank's shard."""
        assert self.reduction is not None, "a bucket arrives once after each launch"
        total = finish_reduce_scatter(self.reduction, self.master.dtype)
        self.gradient = total if self.gradient is None else self.gradient.add_(total)
        self.reduction = None

    def give_gradients(self, mean_of: float) -> None:
        assert self.gradient is not None, "step() reduces every bucket"
        for piece in self.pieces:
            piece.parameter.grad = None
        set_gradients(self.layout, self.pieces, self.gradient.div_(mean_of), self.rank)
        self.gradient = None

    def forget(self) -> None:
        if self.reduction is not None:  # its messages still write into their buffers
            self.arrive()
        self.gradient, self.num_missing = None, len(self.parameters)
        for parameter in [*self.parameters, *(piece.parameter for piece in self.pieces)]:
            parameter.grad = None
