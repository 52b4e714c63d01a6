"""Data parallelism: each rank holds the whole model and its own part of the batch.

    g = (g_0 + g_1 + ... + g_{N-1}) / N           or, with token counts,  sum g_r / sum tokens_r

The same gradient on every rank, and the same optimizer step, keep the weights the same. Both
classes follow one protocol: build on every rank of the group, backward, `finish()`, optimizer step.

    model = BucketedDataParallel(module, group)
    with model.no_sync():
        for batch in first_batches:
            loss(model, batch).backward()      # no communication
    loss(model, last_batch).backward()         # buckets leave while backward still runs
    model.finish()                             # p.grad is the average from here on

A mean of means is not the mean where ranks or micro-batches hold different numbers of tokens. Sum
the loss over tokens instead, and give finish() how many this rank had in the step.

A parameter that a rank did not use counts as zero there; one that no rank used keeps grad None. To
tell the two apart costs no byte: who did not use it sends -0.0, who did never does, and in IEEE 754
only a sum of nothing but -0.0 is -0.0.

Every rank must call finish() equally often. One that has run out of batches may go on calling it
with num_tokens=0. One that simply stops leaves the others waiting: run_ranks names it when the time
is up, and at once with debug=True.

Cost: S bytes of gradients, 2(N-1)/N S sent by each rank and step.
Source: PyTorch Distributed (arXiv 2006.15704), section 3.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.buckets import assign_buckets, flatten, unflatten
from labkit.comm.collectives import all_reduce
from labkit.comm.pieces import broadcast_state, divisor

MIB = 2**20


class NaiveDataParallel(nn.Module):
    """One all-reduce a parameter, after backward: nothing overlaps, and each message pays alpha.

    It sends nothing before finish(), so micro-batches need no no_sync().
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup):
        super().__init__()
        self.module = module
        self.group = group
        broadcast_state([*module.parameters(), *module.buffers()], group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def finish(self, num_tokens: int | None = None) -> None:
        """Average the gradients over the group; num_tokens as in BucketedDataParallel.finish."""
        parameters = _trained(self.module)
        totals = [all_reduce(_flat_share([p]), self.group) for p in parameters]
        mean_of = divisor(num_tokens, self.group, parameters[0].device if parameters else None)
        for parameter, total in zip(parameters, totals, strict=True):
            used = not _nobody_used(total)
            parameter.grad = (total / mean_of).view_as(parameter) if used else None


class BucketedDataParallel(nn.Module):
    """One all-reduce a bucket of whole parameters, launched as soon as its gradients are complete.

    Backward finishes gradients roughly in the reverse order of the parameters, so buckets are
    filled in that order. They leave in that order too, on every rank, whatever order gradients come
    in: a bucket that is complete early waits for those before it, and finish() launches the rest.

    Args:
        module: what to train. The ranks' shapes must agree; values are taken from group rank 0.
        group: the ranks that share the batch.
        bucket_bytes: limit of a bucket; a larger parameter has one for itself. Small buckets start
            early, large ones pay alpha less often.
    """

    def __init__(
        self, module: nn.Module, group: dist.ProcessGroup, *, bucket_bytes: int = MIB
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        broadcast_state([*module.parameters(), *module.buffers()], group)
        parameters = _trained(module)
        places = assign_buckets(parameters, bucket_bytes, reverse=True)
        self._buckets = [_Bucket([parameters[i] for i in place]) for place in places]
        self._num_launched = 0
        self._syncing = True
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, bucket))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds to this rank's gradients: all micro-batches but the last."""
        before = self._syncing
        self._syncing = False
        try:
            yield
        finally:
            self._syncing = before

    def finish(self, num_tokens: int | None = None) -> None:
        """Launch what backward left, wait for everything, and make p.grad the average.

        Args:
            num_tokens: tokens in this rank's loss, all its micro-batches together, where the loss
                is a sum over tokens; the gradient is then that of the mean over all ranks' tokens.
                None averages the ranks' gradients as they are.

        Raises:
            RuntimeError: inside no_sync(), or if a parameter was unfrozen after construction.
        """
        if not self._syncing:
            raise RuntimeError("finish() inside no_sync(): leave the block first")
        known = sum(len(bucket.parameters) for bucket in self._buckets)
        if (trained := len(_trained(self.module))) > known:
            raise RuntimeError(f"{trained} parameters need gradients, {known} did when wrapped")
        for bucket in self._buckets[self._num_launched :]:
            bucket.launch(self.group)
        self._num_launched = 0
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        mean_of = divisor(num_tokens, self.group, parameters[0].device if parameters else None)
        for bucket in self._buckets:
            bucket.finish(mean_of)

    def broadcast_buffers(self) -> None:
        """Take the buffers of group rank 0: running statistics are each rank's own otherwise."""
        broadcast_state(list(self.module.buffers()), self.group)

    def _ready(self, bucket: "_Bucket", parameter: torch.Tensor) -> None:
        """Autograd has just completed parameter.grad. The hook is given the parameter itself."""
        if not self._syncing:
            return
        if bucket.work is not None:
            raise RuntimeError(
                "a gradient changed after its all-reduce was launched: call finish() after each "
                "backward, and put all but the last one into no_sync()"
            )
        bucket.num_missing -= 1
        while self._num_launched < len(self._buckets):
            following = self._buckets[self._num_launched]
            if following.num_missing > 0:
                return
            following.launch(self.group)
            self._num_launched += 1


class _Bucket:
    """Parameters whose gradients travel together, and the message while it is on its way."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.num_missing = len(parameters)
        self.skipped: list[nn.Parameter] = []
        self.flat = torch.empty(0)
        self.work: dist.Work | None = None

    def launch(self, group: dist.ProcessGroup) -> None:
        """Send the gradients off; p.grad becomes the place where the sum will be."""
        self.skipped = [p for p in self.parameters if p.grad is None]
        self.flat = _flat_share(self.parameters)
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)
        for parameter, view in zip(
            self.parameters, unflatten(self.flat, self.parameters), strict=True
        ):
            parameter.grad = view

    def finish(self, mean_of: float) -> None:
        """Wait for the sum and divide it, and be ready for the next backward."""
        assert self.work is not None, "finish() of the model launches every bucket"
        self.work.wait()
        for parameter in self.skipped:
            if parameter.grad is not None and _nobody_used(parameter.grad):
                parameter.grad = None
        self.flat.div_(mean_of)
        self.work, self.flat = None, torch.empty(0)
        self.num_missing = len(self.parameters)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that need a gradient, a shared one once: frozen ones cost no byte."""
    return [p for p in module.parameters() if p.requires_grad]


def _flat_share(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """What this rank adds to the sum, in new memory: gradients, or -0.0 where it has none."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = flatten(grads).add_(0.0)  # -0.0 + 0.0 is 0.0: no gradient says "not used"
    for parameter, view in zip(parameters, unflatten(flat, grads), strict=True):
        if parameter.grad is None:
            view.fill_(-0.0)
    return flat


def _nobody_used(total: torch.Tensor) -> bool:
    return bool(((total == 0) & total.signbit()).all())
