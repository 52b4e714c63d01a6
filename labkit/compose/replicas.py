"""What the replicas of one stage do: the four stages of ZeRO behind one protocol.

    replica.begin()                  # of a step
    ...                              # forward and backward of replica.module, m times
    replica.last_backward()          # before the last of them
    replica.finish(share)            # piece.parameter.grad is the average over the replicas
    replica.optimizer.step(); replica.publish(); replica.forget()

| stage | class          | a micro-batch sends    | once a step                  |
| ----- | -------------- | ---------------------- | ---------------------------- |
| 0     | WholeReplica   |                        | all-reduce, in last backward |
| 1     | ShardedStates  |                        | reduce-scatter, all-gather   |
| 2     | ShardedStates  | reduce-scatter         | all-gather                   |
| 3     | ShardedWeights | two gathers, a scatter |                              |

`pieces` is what the optimizer sees, 1-d, in fp32 where the module's parameters are bf16 or fp16.
`share` adds up the gradient of a weight that another stage has too. It needs the whole gradient:
after the all-reduce in stage 0, before the reduce-scatter in stage 1.

Cost: bytes as in labkit.cost.sharding.zero_traffic; in stage 0 with bf16 an fp32 gradient of every
parameter from the end of backward to the update.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.pieces import Options, Piece, group_pieces
from labkit.parallel.data import BucketedDataParallel
from labkit.parallel.fully_sharded import FullyShardedModel
from labkit.parallel.zero import MakeOptimizer, ZeroOptimizer

LOW = (torch.bfloat16, torch.float16)


class Replica(Protocol):
    """One chunk's module and what its replicas do."""

    module: nn.Module
    pieces: list[Piece]
    optimizer: torch.optim.Optimizer

    def begin(self) -> None: ...

    def last_backward(self) -> None: ...

    def finish(self, share: Callable[[], None]) -> None: ...

    def publish(self) -> None: ...

    def forget(self) -> None: ...


class WholeReplica:
    """Stage 0: everything whole; buckets leave while the last backward runs."""

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        group: dist.ProcessGroup,
        options: Options | None,
        bucket_bytes: int,
    ) -> None:
        self.module = module
        self._model = BucketedDataParallel(module, group, bucket_bytes=bucket_bytes)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        self.pieces = [
            Piece(name=name, shape=parameter.shape, start=0, parameter=_master(parameter))
            for name, parameter in named
        ]
        self.optimizer = make_optimizer(group_pieces(self.pieces, options))
        self._quiet = ExitStack()

    def begin(self) -> None:
        self._quiet.close()
        self._quiet.enter_context(self._model.no_sync())

    def last_backward(self) -> None:
        self._quiet.close()

    def finish(self, share: Callable[[], None]) -> None:
        self._model.finish()
        share()
        for piece, parameter in zip(self.pieces, self._parameters, strict=True):
            if parameter.grad is not None:
                master = piece.parameter
                master.grad = parameter.grad.to(master.dtype).view_as(master)
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Bring what the optimizer has changed into the module."""
        for piece, parameter in zip(self.pieces, self._parameters, strict=True):
            if piece.parameter.dtype != parameter.dtype:
                parameter.copy_(piece.parameter.view_as(parameter))

    def forget(self) -> None:
        for piece, parameter in zip(self.pieces, self._parameters, strict=True):
            piece.parameter.grad = parameter.grad = None


class ShardedStates:
    """Stages 1 and 2: an optimizer of this rank's shard."""

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        group: dist.ProcessGroup,
        options: Options | None,
        bucket_bytes: int,
        *,
        stage: int,
    ) -> None:
        self.module = module
        self._zero = ZeroOptimizer(
            module,
            make_optimizer,
            group,
            stage=stage,
            options=options,
            bucket_bytes=bucket_bytes,
        )
        self.pieces, self.optimizer = self._zero.pieces, self._zero.optimizer

    def begin(self) -> None:
        """Nothing: stage 1 sends in finish(), stage 2 in every backward."""

    def last_backward(self) -> None:
        """Nothing, as in begin()."""

    def finish(self, share: Callable[[], None]) -> None:
        share()
        self._zero.finish()

    def publish(self) -> None:
        self._zero.gather_weights()

    def forget(self) -> None:
        self._zero.zero_grad()


class ShardedWeights:
    """Stage 3: weights are whole while a layer runs; between steps there are shards only."""

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        group: dist.ProcessGroup,
        options: Options | None,
        units: list[nn.Module],
        keep: Callable[[str], bool],
    ) -> None:
        dtype = next(p.dtype for name, p in module.named_parameters() if keep(name))
        low = dtype in LOW
        self._model = FullyShardedModel(
            _widened(module, keep) if low else module,
            group,
            units=units,
            compute_dtype=dtype if low else None,
            keep=keep,
        )
        self.module: nn.Module = self._model
        self.pieces = self._model.pieces
        self.optimizer = make_optimizer(group_pieces(self.pieces, options))

    def begin(self) -> None:
        """Nothing: every backward sends."""

    def last_backward(self) -> None:
        """Nothing, as in begin()."""

    def finish(self, share: Callable[[], None]) -> None:
        share()
        self._model.finish()

    def publish(self) -> None:
        """Nothing: the next forward gathers the new weights."""

    def forget(self) -> None:
        for piece in self.pieces:
            piece.parameter.grad = None


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """What the optimizer changes, 1-d: the same memory, or an fp32 copy of low precision."""
    flat = parameter.detach().view(-1)
    return nn.Parameter(flat.float() if parameter.dtype in LOW else flat)


def _widened(module: nn.Module, keep: Callable[[str], bool]) -> nn.Module:
    """The module with fp32 parameters. module.float() would swap them, which fake ones refuse."""
    wide: dict[nn.Parameter, nn.Parameter] = {}
    for prefix, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and keep(f"{prefix}.{name}"):
                trained = parameter.requires_grad
                copy = wide.get(parameter, nn.Parameter(parameter.detach().float(), trained))
                wide[parameter] = part._parameters[name] = copy
    return module
