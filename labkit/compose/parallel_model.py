"""One rank of a model in training: what a step does, in order, on every rank.

    scored tokens, summed over replicas                 one all-reduce of 8 bytes
    m micro-batches through the pipeline                bytes of pp, cp, ep and tp, in each of them
    gradients of the replicas, averaged                 once a step (ZeRO 2 and 3: in each backward)
    gains of norms, summed over tp                      once a step, under sequence parallelism
    gradients of routers, summed over tp                once a step, in the same message
    copies of a tied embedding, summed                  once a step, between first and last stage
    one norm, clip, update                              8 bytes for each axis
    loads of experts, summed over replicas              8 E bytes a layer, if they are balanced

The loss is the mean over all scored tokens of the batch, wherever they lie: each micro-batch's sum
is divided by their number once, so nothing depends on how they are spread. Replicas are the ranks
of dp, cp and ep: they hold the same dense weights and other tokens. They average their gradients,
and so each takes as many times its part. Of experts sharers.py tells.

No tensor's value decides what is done, but for two checks, that tokens are words
(labkit.comm.split) and which parameters no rank used (labkit.comm.shards, ZeRO 1 to 3), and for the
choice of experts.

Shapes: B rows of the batch, T sequence, D width.
"""

from collections.abc import Callable
from functools import partial

import torch

from labkit.comm.collectives import all_reduce
from labkit.comm.mesh import Mesh
from labkit.comm.pieces import Piece
from labkit.compose.axes import EXPERTS, data_axes
from labkit.compose.experts import balance
from labkit.compose.norm import counted, scale_gradients, square_of, sum_gradients
from labkit.compose.plan import Plan
from labkit.compose.replicas import Replica
from labkit.compose.stages import ParallelStage
from labkit.model.transformer import IGNORE
from labkit.parallel.context import shard_sequence
from labkit.parallel.pipeline import Action, Boundary, Stage, run_schedule
from labkit.parallel.pipeline.exchange import sum_shared


class ParallelModel:
    """One rank of a model in training; build it with `parallelize`.

    Attributes:
        stages: this rank's parts of the model, by chunk.
        replicas: of each chunk, what is done along dp.
        pieces: what this rank's optimizers see.
        optimizers: one for each chunk, for a schedule of the rate, say.
        grad_norm: of the last step, before clipping; None without clip_norm.
    """

    def __init__(
        self,
        stages: list[ParallelStage],
        replicas: list[Replica],
        plan: Plan,
        mesh: Mesh,
        dtype: torch.dtype,
        clip_norm: float | None,
        balancing_rate: float,
    ) -> None:
        self.stages, self.replicas = stages, replicas
        self.plan, self.mesh, self.clip_norm = plan, mesh, clip_norm
        self.balancing_rate = balancing_rate
        self.config = stages[0].config
        self.schedule = plan.make_schedule()
        self.grad_norm: torch.Tensor | None = None
        self.optimizers = [replica.optimizer for replica in replicas]
        self.pieces = [piece for replica in replicas for piece in replica.pieces]
        self._dtype, self._device = dtype, self.pieces[0].parameter.device

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One optimizer step; the loss before it, on every rank.

        Args:
            tokens: [B, T], the whole batch, on every rank.
            targets: [B, T], IGNORE where nothing is scored.

        Raises:
            ValueError: on every rank and before anything is sent, if the batch does not fit.
        """
        if tokens.shape != targets.shape or tokens.dim() != 2:
            raise ValueError(f"tokens {list(tokens.shape)}, targets {list(targets.shape)}: [B, T]")
        self.plan.check_batch(self.config, *tokens.shape)
        loss = self.forward_backward(self.own_tokens(tokens), self.own_tokens(targets))
        self.grad_norm = None if self.clip_norm is None else self.clip(self.clip_norm)
        self.update()
        return loss

    def own_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part [B/(dp ep), T/cp] of a whole batch [B, T]: of its rows, of their tokens.

        Rows go to dp first and then to ep.
        """
        plan, mesh = self.plan, self.mesh
        place = mesh.coordinate("dp") * plan.ep + mesh.coordinate("ep")
        own = x.chunk(plan.dp * plan.ep)[place]
        return own if plan.cp == 1 else shard_sequence(own, mesh.group("cp"))

    def forward_backward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of all replicas' rows; then each piece has its part of the loss's gradient.

        Args:
            tokens: [B/(dp ep), T/cp] of `own_tokens`, on every rank of its pipeline.
            targets: of the same shape.
        """
        for replica in self.replicas:
            replica.begin()
        others = self.mesh.group(*data_axes(self.plan))
        scored = all_reduce((targets != IGNORE).sum(), others).clamp(min=1)
        part = self._run(tokens, targets, self.plan.replicas / scored.to(self._loss_dtype))
        for stage, replica in zip(self.stages, self.replicas, strict=True):
            replica.finish(partial(self._sum_tied, stage))
        parts = {name for stage in self.stages for name in stage.partial_gradients()}
        sum_gradients([p for p in self.pieces if p.name in parts], self.mesh.group("tp"))
        return all_reduce(all_reduce(part, others), self.mesh.group("pp"))

    def clip(self, clip_norm: float) -> torch.Tensor:
        """Scale the gradients of all ranks to a norm of at most clip_norm; returns it before."""
        norm = self._square().sqrt()
        scale_gradients(self.pieces, norm, clip_norm)
        return norm

    def update(self) -> None:
        """Let the optimizers change the weights, and forget the gradients."""
        for replica in self.replicas:
            replica.optimizer.step()
            replica.publish()
            replica.forget()
        if self.balancing_rate:
            balance(self.stages, self.balancing_rate, self.mesh.group(*data_axes(self.plan)))

    def _square(self) -> torch.Tensor:
        """Sum of the squares of all gradients, each number once, the same on every rank."""
        group, pieces = self.mesh.group, self._counted()
        if self.plan.zero:  # every rank has shards of its own, of experts too
            square = all_reduce(square_of(pieces, self._device), group(*data_axes(self.plan)))
        else:
            dense = [piece for piece in pieces if EXPERTS not in piece.name]
            square = square_of(dense, self._device)
            if self.config.num_experts:
                experts = [piece for piece in pieces if EXPERTS in piece.name]
                square = square + all_reduce(square_of(experts, self._device), group("ep"))
        return all_reduce(all_reduce(square, group("pp")), group("tp"))

    @property
    def _loss_dtype(self) -> torch.dtype:
        return torch.float64 if self._dtype == torch.float64 else torch.float32

    def _run(
        self, tokens: torch.Tensor, targets: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        """All micro-batches; this rank's part of the loss, 0 but on the last stage."""
        m, last = self.plan.num_micro_batches, self.stages[-1]
        shape = (tokens.shape[0] // m, tokens.shape[1])
        takes = [self._takes(stage, *shape) for stage in range(self.plan.num_stages)]
        rank = self.mesh.coordinate("pp")
        result = run_schedule(
            self.schedule,
            [
                Stage(replica.module, takes[self.schedule.stage(rank, chunk)])
                for chunk, replica in enumerate(self.replicas)
            ],
            tokens,
            targets,
            self.mesh.group("pp"),
            loss_fn=lambda logits, part: last.loss(logits, part) * scale,
            loss_divisor=1,
            observe=self._watch(),
            boundaries=takes,
        )
        if result.loss is None:
            return torch.zeros((), dtype=self._loss_dtype, device=self._device)
        return result.loss / self.plan.replicas

    def _takes(self, stage: int, rows: int, seq_len: int) -> Boundary:
        """What one micro-batch looks like where it enters a stage."""
        if stage == 0:
            return Boundary(shape=(rows, seq_len), dtype=torch.int64)
        length = seq_len // self.plan.tp if self.plan.sequence_parallel else seq_len
        return Boundary(shape=(rows, length, self.config.hidden_size), dtype=self._dtype)

    def _watch(self) -> Callable[[Action], None]:
        """Tell each replica of its last backward, as the schedule comes to it."""
        row = self.schedule.ranks[self.mesh.coordinate("pp")]
        last = {action.chunk: action for action in row if action.kind != "F"}

        def observe(action: Action) -> None:
            if action == last[action.chunk]:
                self.replicas[action.chunk].last_backward()

        return observe

    def _sum_tied(self, stage: ParallelStage) -> None:
        """Add up the gradients of the two copies of an embedding."""
        weight, last = stage.tied_weight, self.plan.pp - 1
        if weight is not None and last > 0:
            other = 0 if self.mesh.coordinate("pp") == last else last
            sum_shared(weight, other, self.mesh.group("pp"))

    def _counted(self) -> list[Piece]:
        """The pieces whose gradients this rank counts in the norm."""
        rank, found = self.mesh.coordinate("tp"), []
        for stage, replica in zip(self.stages, self.replicas, strict=True):
            names = counted(stage.layout, rank, self.plan.tp)
            if stage.tied_weight is not None and not stage.is_first:
                names.discard("embed_tokens.weight")
            found += [piece for piece in replica.pieces if piece.name in names]
        return found
