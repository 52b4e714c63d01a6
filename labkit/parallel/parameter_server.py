"""Parameter servers: ranks that keep the weights, and workers that push gradients and pull weights.

Synchronous, `ParameterServer`: every rank works, and a server waits for all gradients.

    w <- optimizer(w, (g_0 + g_1 + ... + g_{N-1}) / N)

A server receives (N-1) S bytes and sends as much in every step, the others S each: its link is the
bottleneck. Sharded over k servers each carries 1/k of that, and with k = N it is an all-reduce in
two halves.

Asynchronous, `serve` and `AsyncWorker`: one rank serves, and applies each gradient as it comes, so
no worker waits for the slowest. The price is staleness: the number of updates between the pull of
the weights that a gradient was computed with and its own update. It is bounded by not giving out
weights while that could make some worker's gradient too stale.

Sources: parameter server, Li et al. (OSDI 2014); bounded staleness, Ho et al. (NIPS 2013).

Shapes: P elements of the parameters that travel together.
"""

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.buckets import flatten, unflatten
from labkit.comm.collectives import broadcast

PULL, PUSH, LEAVE = range(3)  # what a worker asks of the asynchronous server
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class ParameterServer:
    """Synchronous: after backward, `step()` takes the place of the optimizer's.

    Args:
        module: what to train; values are taken from the first server.
        make_optimizer: builds the optimizer of the parameters that this rank serves, such as
            partial(torch.optim.SGD, lr=0.1). Only servers keep optimizer state.
        group: all ranks; each is a worker, a server too.
        servers: group ranks that serve. Whole parameters, the largest first, go to the server that
            has the fewest bytes so far.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        group: dist.ProcessGroup,
        *,
        servers: Sequence[int] = (0,),
    ) -> None:
        size = dist.get_world_size(group)
        if not servers or not set(servers) <= set(range(size)):
            raise ValueError(f"servers {list(servers)} of a group of {size} ranks")
        self.group = group
        self.parts = _share_out([p for p in module.parameters() if p.requires_grad], servers)
        mine = self.parts.get(dist.get_rank(group), [])
        self.optimizer = make_optimizer(mine) if mine else None
        root = _global_rank(servers[0], group)
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.detach().copy_(broadcast(tensor.detach(), group, root))

    def step(self) -> None:
        """Push gradients, update on the servers, pull weights."""
        for server, parameters in self.parts.items():
            self._push(parameters, server)
        if self.optimizer is not None:
            self.optimizer.step()
        for server, parameters in self.parts.items():
            weights = broadcast(flatten(parameters), self.group, _global_rank(server, self.group))
            _overwrite(parameters, weights)

    def _push(self, parameters: list[nn.Parameter], server: int) -> None:
        """Send gradients to their server, where p.grad becomes the mean."""
        gradient = _gradient(parameters)  # [P]
        pushed = None
        if dist.get_rank(self.group) == server:
            pushed = [torch.empty_like(gradient) for _ in range(dist.get_world_size(self.group))]
        dist.gather(gradient, pushed, dst=_global_rank(server, self.group), group=self.group)
        if pushed is not None:
            mean = torch.stack(pushed).mean(0)  # [P]
            for parameter, view in zip(parameters, unflatten(mean, parameters), strict=True):
                parameter.grad = view


def serve(
    parameters: Iterable[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup,
    *,
    staleness_bound: int,
) -> list[int]:
    """Be the server, on group rank 0, until every other rank has left.

    All workers that compute may push before the one with the oldest weights does. So one more
    worker gets the newest weights only if

        version + number computing - oldest version among them <= staleness_bound

    Args:
        parameters: the weights; the workers' shapes must agree.
        optimizer: applies one gradient at a time to them.
        group: the server and its workers.
        staleness_bound: 0 makes workers take turns; from the number of workers less one on, nobody
            waits who is as fast as the others.

    Returns:
        The staleness of each gradient, in the order of the updates.

    Raises:
        ValueError: if the bound is negative.
    """
    if staleness_bound < 0:
        raise ValueError(f"staleness_bound is {staleness_bound}, the least is 0")
    parameters = list(parameters)
    staleness: list[int] = []
    waiting: list[int] = []  # workers that asked for weights, first come first served
    computing: dict[int, int] = {}  # worker: version of the weights it has
    num_left = 0
    while num_left < dist.get_world_size(group) - 1:
        request = torch.empty(1, dtype=torch.long)
        worker = dist.recv(request, group=group)  # from whoever comes first
        if request == PULL:
            computing.pop(worker, None)  # it may have pulled before and not pushed
            waiting.append(worker)
        elif request == PUSH:
            _receive_gradient(parameters, worker, group)
            optimizer.step()
            staleness.append(len(staleness) - computing.pop(worker))
        else:
            computing.pop(worker, None)
            num_left += 1
        version = len(staleness)
        while waiting and _may_compute(version, computing, staleness_bound):
            computing[waiting[0]] = version
            dist.send(flatten(parameters).cpu(), dst=waiting.pop(0), group=group)
    return staleness


class AsyncWorker:
    """A worker of `serve`, for the time of a with block.

        with AsyncWorker(module.parameters(), group) as worker:
            for batch in batches:
                worker.pull()                   # the only moment at which weights change
                loss(module, batch).backward()
                worker.push()

    Leaving the block tells the server, an exception does too: the other workers go on.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.parameters = list(parameters)
        self.group = group
        self.server = _global_rank(0, group)
        self._pulled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ask(LEAVE)

    def pull(self) -> None:
        """Overwrite the weights with the server's, and drop the gradients of the old ones."""
        self._ask(PULL)
        weights = flatten(self.parameters).cpu()  # [P]
        dist.recv(weights, src=self.server, group=self.group)
        _overwrite(self.parameters, weights)
        for parameter in self.parameters:
            parameter.grad = None
        self._pulled = True

    def push(self) -> None:
        """Send the gradients.

        Raises:
            RuntimeError: if no weights were pulled since the last push.
        """
        if not self._pulled:
            raise RuntimeError("push() without a pull() before: whose gradient is this?")
        self._pulled = False
        self._ask(PUSH)
        dist.send(_gradient(self.parameters).cpu(), dst=self.server, group=self.group)

    def _ask(self, request: int) -> None:
        dist.send(torch.tensor([request]), dst=self.server, group=self.group)


def _may_compute(version: int, computing: dict[int, int], staleness_bound: int) -> bool:
    """Whether one more worker can take the newest weights and nobody become too stale."""
    if not computing:
        return True
    return version + len(computing) - min(computing.values()) <= staleness_bound


def _receive_gradient(
    parameters: list[nn.Parameter], worker: int, group: dist.ProcessGroup
) -> None:
    gradient = torch.empty_like(flatten(parameters), device="cpu")  # [P]
    dist.recv(gradient, src=worker, group=group)
    for parameter, view in zip(parameters, unflatten(gradient, parameters), strict=True):
        parameter.grad = view.to(parameter.device)


def _share_out(
    parameters: list[nn.Parameter], servers: Sequence[int]
) -> dict[int, list[nn.Parameter]]:
    """Whole parameters by server, about equal bytes each; servers without any are left out."""
    parts: dict[int, list[nn.Parameter]] = {server: [] for server in servers}
    filled = dict.fromkeys(servers, 0)
    for parameter in sorted(parameters, key=lambda p: p.nbytes, reverse=True):
        server = min(servers, key=lambda server: filled[server])
        parts[server].append(parameter)
        filled[server] += parameter.nbytes
    return {server: part for server, part in parts.items() if part}


def _gradient(parameters: list[nn.Parameter]) -> torch.Tensor:
    """Gradients in one flat tensor [P]; one that this rank lacks is zero."""
    return flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])


@torch.no_grad()
def _overwrite(parameters: list[nn.Parameter], weights: torch.Tensor) -> None:
    for parameter, view in zip(parameters, unflatten(weights, parameters), strict=True):
        parameter.copy_(view)


def _global_rank(group_rank: int, group: dist.ProcessGroup) -> int:
    return dist.get_global_rank(group, group_rank)
