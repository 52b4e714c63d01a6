"""What happens on the ranks while lab 08's training steps are judged.

A rank decides nothing. It hands the learner a Part that writes down what it is asked to run,
listens to the messages, and keeps the gradients of the first update; the parent compares.

Each case is one mesh, with weights and batches of its own. All ranks are given the whole batch of a
step, and no row of it comes twice.

Shapes: B rows of the batch, T sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.grade.lab08_part import After, Part
from labkit.measure.ledger import CommLedger
from labkit.model.config import ModelConfig
from labkit.model.transformer import Transformer, initialise

# Three layers over two stages, and thirteen words over two ranks of tp: neither divides.
CONFIG = ModelConfig(
    num_layers=3,
    hidden_size=16,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=13,
    max_seq_len=8,
)
RATE, MOMENTUM = 0.5, 0.9


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some steps on one mesh.

    Args:
        clip_norm: below the norm of the first step, or math.inf.
    """

    dp: int
    pp: int
    tp: int
    num_micro_batches: int
    clip_norm: float
    num_steps: int = 2
    rows: int = 8
    seq_len: int = 5

    def __str__(self) -> str:
        mesh, m = f"dp={self.dp} x pp={self.pp} x tp={self.tp}", self.num_micro_batches
        return f"{mesh}, {self.rows} rows, {m} micro-batch{'es' * (m > 1)} a replica"

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    def model(self) -> Transformer:
        """The whole model, the same wherever it is made."""
        model = Transformer(CONFIG).double()
        initialise(model, torch.Generator().manual_seed(3 + self.world_size))
        return model

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets [B, T]; the first words of a row number it."""
        generator = torch.Generator().manual_seed(100 * self.world_size + step)
        shape = (self.rows, self.seq_len + 1)
        words = torch.randint(CONFIG.vocab_size, shape, generator=generator)
        words[:, 0] = torch.arange(self.rows)
        return words[:, :-1].clone(), words[:, 1:].clone()


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Its update grows with the gradient, so a wrong factor shows. Adam's would not."""
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


class WatchedPart(Part):
    """A Part that writes down every run, and the gradients of every update."""

    def __init__(self, model: Transformer, mesh: Mesh, ledger: CommLedger) -> None:
        super().__init__(model, mesh, make_optimizer)
        self._ledger = ledger
        self.batch: tuple[torch.Tensor, torch.Tensor] = (torch.empty(0), torch.empty(0))
        self.runs: list[dict[str, Any]] = []
        self.updates: list[list[torch.Tensor | None]] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.updates.append(self._gradients()))

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        after: After | None = None,
    ) -> torch.Tensor:
        stale = any(g is not None and bool(g.any()) for g in self._gradients())
        start, ends = len(self._ledger.ops), []

        def back(i: int) -> None:
            ends.append(len(self._ledger.ops))  # the last one: all micro-batches are through
            if after is not None:
                after(i)

        loss = super().run(inputs, targets, back)
        tokens, words = self.batch
        self.runs.append(
            {
                "stale": stale,
                "rows": [_numbers(part, tokens) for part in inputs],
                "targets": [_numbers(part, words) for part in targets],
                "calls": (start, ends[-1]),
            }
        )
        return loss

    def _gradients(self) -> list[torch.Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in self.parameters()]


def run_steps(world: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]) -> list[Any]:
    """Every case on this rank, each with what happened in its steps."""
    return [_run(learner, case) for case in cases]


def _run(learner: Callable, case: Case) -> dict[str, Any]:
    mesh = Mesh(dp=case.dp, pp=case.pp, tp=case.tp)
    with CommLedger() as ledger:
        part = WatchedPart(case.model(), mesh, ledger)
        steps = [_step(learner, case, part, mesh, ledger, step) for step in range(case.num_steps)]
    return {
        "place": tuple(mesh.coordinate(axis) for axis in ("dp", "pp", "tp")),
        "steps": steps,
        "updates": len(part.updates),
        "applied": part.updates[0] if part.updates else [],
        "weights": {name: p.detach() for name, p in part.named_parameters()},
        "cut": [name for name, _ in part.named_parameters() if part.is_cut(name)],
    }


def _step(
    learner: Callable, case: Case, part: WatchedPart, mesh: Mesh, ledger: CommLedger, step: int
) -> dict[str, Any]:
    tokens, targets = part.batch = case.batch(step)
    part.runs, before = [], len(ledger.ops)
    told = learner(
        part, mesh, tokens.clone(), targets.clone(), case.num_micro_batches, case.clip_norm
    )
    loss, norm = told if isinstance(told, (tuple, list)) and len(told) == 2 else (None, None)
    calls = [(call.operation, call.axis, call.payload_bytes) for call in ledger.ops[before:]]
    runs = [{**run, "calls": tuple(n - before for n in run["calls"])} for run in part.runs]
    return {"loss": _number(loss), "norm": _number(norm), "calls": calls, "runs": runs}


def _numbers(part: torch.Tensor, batch: torch.Tensor) -> list[int]:
    """Which rows of the batch a micro-batch holds; -1 for what is none."""
    found = []
    for row in part:
        same = [i for i, other in enumerate(batch) if torch.equal(row, other)]
        found.append(same[0] if same else -1)
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return float(value) if isinstance(value, (int, float)) else None
