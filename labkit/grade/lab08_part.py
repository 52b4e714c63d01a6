"""One rank's part of a model in lab 08: a stage of the pipeline, its matrices split over tp.

    part = Part(model, mesh, make_optimizer)
    loss = part.run(inputs, targets)         # lists of micro-batches: forward and backward of all
    part.optimizer.step()

What is done along dp, the norm, clipping and the update are left to the caller. The pipeline runs
1F1B; along tp each half of a layer is summed once forward and once backward.

Cost: bytes of pp and tp, in each micro-batch; nothing along dp.

Shapes: b rows of a micro-batch, T sequence, D width.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from labkit.comm.mesh import Mesh
from labkit.compose.plan import Plan
from labkit.compose.stages import ParallelStage
from labkit.model.transformer import Transformer
from labkit.parallel.pipeline import (
    Action,
    Boundary,
    Stage,
    one_f_one_b,
    run_schedule,
    split_layers,
)

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
After = Callable[[int], object]


class Part:
    """What one rank of a mesh holds of a model.

    Args:
        model: the whole, the same on every rank; its weights are copied.
        mesh: with sizes dp, pp and tp.
        make_optimizer: of this rank's parameters.

    Attributes:
        optimizer: of this rank's parameters.
    """

    def __init__(self, model: Transformer, mesh: Mesh, make_optimizer: MakeOptimizer) -> None:
        self._mesh, self._config = mesh, model.config
        layers = split_layers(model.config.num_layers, mesh.size("pp"))[mesh.coordinate("pp")]
        plan = Plan(dp=mesh.size("dp"), pp=mesh.size("pp"), tp=mesh.size("tp"))
        self._stage = ParallelStage(model, layers, mesh, None, plan)
        self.optimizer = make_optimizer(self._stage.parameters())
        self._dtype = next(self._stage.parameters()).dtype

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Name in the whole model, and this rank's tensor."""
        return list(self._stage.named_parameters())

    def parameters(self) -> list[nn.Parameter]:
        """The tensors alone."""
        return list(self._stage.parameters())

    def is_cut(self, name: str) -> bool:
        """Whether tp cuts this parameter; if not, every rank of tp holds the whole of it."""
        return self._stage.layout[name].parts > 1

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        after: After | None = None,
    ) -> torch.Tensor:
        """Send micro-batches through the pipeline and back.

        Gradients of the mean loss of these micro-batches are added to those of the parameters.

        Args:
            inputs: tokens [b, T], one a micro-batch; the same on all ranks of a replica.
            targets: the words to predict [b, T], one a micro-batch.
            after: called with i when micro-batch i has come back on this rank.

        Returns:
            The mean loss on the last stage, 0 on the others.
        """
        _check(inputs, targets)
        m, mesh = len(inputs), self._mesh
        takes = [self._takes(stage, inputs[0].shape) for stage in range(mesh.size("pp"))]
        backwards = _Backwards(after)
        result = run_schedule(
            one_f_one_b(mesh.size("pp"), m),
            [Stage(self._stage, takes[mesh.coordinate("pp")])],
            torch.cat(list(inputs)),
            torch.cat(list(targets)),
            mesh.group("pp"),
            loss_fn=self._stage.loss,
            loss_divisor=m * targets[0].numel(),
            observe=backwards,
            boundaries=takes,
        )
        backwards.finish()
        return torch.zeros((), dtype=self._dtype) if result.loss is None else result.loss

    def _takes(self, stage: int, shape: Sequence[int]) -> Boundary:
        """What one micro-batch looks like where it enters a stage."""
        if stage == 0:
            return Boundary(shape=tuple(shape), dtype=torch.int64)
        return Boundary(shape=(*shape, self._config.hidden_size), dtype=self._dtype)


class _Backwards:
    """Tells of each backward once it is over: when the next action begins, or all are done."""

    def __init__(self, after: After | None) -> None:
        self._after = after
        self._last: Action | None = None

    def __call__(self, action: Action) -> None:
        self.finish()
        self._last = action

    def finish(self) -> None:
        if self._after is not None and self._last is not None and self._last.kind == "B":
            self._after(self._last.micro_batch)
        self._last = None


def _check(inputs: Any, targets: Any) -> None:
    for what, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, (list, tuple)) or not given:
            raise ValueError(f"{what} are a list of micro-batches, got a {type(given).__name__}")
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} micro-batches of inputs, {len(targets)} of targets")
    if len(shapes := {tuple(x.shape) for x in (*inputs, *targets)}) > 1:
        raise ValueError(f"micro-batches are of one size; these are of {sorted(shapes)}")
