"""Which ranks share what of a stage: its dense weights, and its experts if it has some.

Experts have fewer replicas than the rest: over ep each rank has others. So a stage with experts
has two replicas (replicas.py) in one, each with a part of the parameters and a group of its own,
and one optimizer that sees the pieces of both.

An expert's gradient is a sum over the tokens of its ep group already. The loss was multiplied by
the number of all replicas, dp cp ep, so the average over the dp cp replicas of an expert is ep
times too large, and is divided by ep here, once a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.comm.pieces import Options
from labkit.compose.axes import EXPERTS, data_axes, expert_axes
from labkit.compose.plan import Plan
from labkit.compose.replicas import Replica, ShardedStates, ShardedWeights, WholeReplica
from labkit.compose.stages import ParallelStage
from labkit.parallel.zero import MakeOptimizer


class WithExperts:
    """A stage whose experts have replicas of their own.

    Args:
        module: the whole stage, as it is run.
        dense: of all but the experts.
        experts: of these alone, with the optimizer of `dense`.
        ep: ranks whose tokens an expert has seen.
    """

    def __init__(self, module: nn.Module, dense: Replica, experts: Replica, ep: int) -> None:
        self.module, self.optimizer, self.ep = module, dense.optimizer, ep
        self.dense, self.experts = dense, experts
        self.pieces = [*dense.pieces, *experts.pieces]

    def begin(self) -> None:
        self.dense.begin()
        self.experts.begin()

    def last_backward(self) -> None:
        self.dense.last_backward()
        self.experts.last_backward()

    def finish(self, share: Callable[[], None]) -> None:
        self.dense.finish(share)
        self.experts.finish(lambda: None)
        for piece in self.experts.pieces:
            if piece.parameter.grad is not None:
                piece.parameter.grad.div_(self.ep)

    def publish(self) -> None:
        self.dense.publish()
        self.experts.publish()

    def forget(self) -> None:
        self.dense.forget()
        self.experts.forget()


@dataclass(frozen=True, kw_only=True)
class Sharers:
    """What makes the replicas of a rank's stages.

    Args:
        options, bucket_bytes: as in `parallelize`.
    """

    plan: Plan
    mesh: Mesh
    make_optimizer: MakeOptimizer
    options: Options | None
    bucket_bytes: int

    def replica(self, stage: ParallelStage) -> Replica:
        """What the stage of ZeRO makes of a stage of the pipeline."""
        everyone = self.mesh.group(*data_axes(self.plan))
        if not stage.config.num_experts:
            return self._of(stage, everyone, self.make_optimizer, lambda name: True)
        dense = self._of(stage, everyone, self.make_optimizer, lambda name: EXPERTS not in name)

        def same_optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
            for group in groups:
                dense.optimizer.add_param_group(group)
            return dense.optimizer

        some = self.mesh.group(*expert_axes(self.plan))
        experts = self._of(stage, some, same_optimizer, lambda name: EXPERTS in name)
        module = dense.module if self.plan.zero == 3 else stage
        return WithExperts(module, dense, experts, self.plan.ep)

    def _of(
        self,
        stage: ParallelStage,
        group: dist.ProcessGroup,
        make_optimizer: MakeOptimizer,
        keep: Callable[[str], bool],
    ) -> Replica:
        """Of the parameters whose names are to be kept."""
        if self.plan.zero == 3:
            layers = list(stage.layers.values())
            units = layers if keep("") else [layer.get_submodule("mlp.experts") for layer in layers]
            return ShardedWeights(stage, make_optimizer, group, self.options, units, keep)
        rest: tuple[Any, ...] = make_optimizer, group, self.options, self.bucket_bytes
        part = _part_of(stage, keep)
        if self.plan.zero == 0:
            return WholeReplica(part, *rest)
        return ShardedStates(part, *rest, stage=self.plan.zero)


def _part_of(module: nn.Module, keep: Callable[[str], bool]) -> nn.Module:
    """The module itself, or one without a forward that holds some of its tensors by their names.

    Nothing is copied.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if all(keep(name) for name, _ in tensors):
        return module
    part = nn.Module()
    for name, tensor in tensors:
        if keep(name):
            home, _, last = name.rpartition(".")
            owner = _made(part, home)
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(last, tensor)
            else:
                owner.register_buffer(last, tensor)
    return part


def _made(part: nn.Module, home: str) -> nn.Module:
    """The submodule of this name; what is missing of it is made."""
    for word in home.split(".") if home else []:
        if word not in part._modules:
            part.add_module(word, nn.Module())
        part = part.get_submodule(word)
    return part
