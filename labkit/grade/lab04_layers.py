"""Lab 04: the check of ZeRO-3.

S bytes of parameters on each of N ranks, M micro-batches a step, c the bytes of a rank's share:

| moment                    | held beside the optimizer's 2 c | a rank sends |
| ------------------------- | ------------------------------- | ------------ |
| after it was built        | c                               | 0            |
| between forward, backward | c, later 2 c, and activations   | (N−1) c      |
| after backward            | 2 c                             | 2 (N−1) c    |
| after the optimizer step  | 2 c                             | 0            |

At most two layers are whole at any time. Outputs and input gradients are compared with plain layers
and AdamW in one process: the weights themselves are in pieces.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from labkit.grade.check import Learner, expect
from labkit.grade.lab04_layer_ranks import LayerCase, inputs_of, layers_of, run_layers
from labkit.grade.lab04_ranks import NUMBER, SETTINGS
from labkit.grade.lab04_weights import CLOSE
from labkit.grade.lab04_zero import at_most, judge_sent, trials

MOST_LAYERS = 2
SQUARE = ((4, 4),) * 6
UNEVEN = ((5, 3), (1, 5), (4, 1), (2, 4), (3, 2))  # (out, in)
LAYERS = {
    2: (
        LayerCase(members=(0, 1), shapes=SQUARE, num_steps=3, seed=21),
        LayerCase(members=(0, 1), shapes=SQUARE, num_micro_batches=2, seed=23),
    ),
    4: (
        LayerCase(members=(0, 1, 2, 3), shapes=UNEVEN, seed=22),
        LayerCase(members=(1, 3), shapes=UNEVEN, num_steps=5, seed=24),
        LayerCase(members=(2,), shapes=UNEVEN, seed=25),
    ),
}


def check_zero3(learner: Learner) -> Iterator[str]:
    """Layers whose parameters are whole only while they are used."""
    for case, seen in trials(learner, run_layers, LAYERS):
        judge_outputs(case, seen)
        for place, rank in enumerate(case.members):
            _judge_held(case, seen[place], rank)
        for place, rank in enumerate(case.members):
            _judge_sent(case, seen[place], rank)
    yield from ("outputs", "gradients", "held_bytes", "layers_alive", "traffic")


def judge_outputs(case: LayerCase, seen: Sequence[dict[str, Any]]) -> None:
    """The outputs of every micro-batch, and the gradients of its input."""
    expected = _serial(case, scale=1.0 / len(case.members))
    summed = _serial(case, scale=1.0)
    num_micro = case.num_micro_batches
    for index in range(case.num_steps * num_micro):
        step = index // num_micro
        for place, rank in enumerate(case.members):
            where: dict[str, Any] = {"rank": rank, "case": case, "step": step + 1}
            got, right = seen[place]["micro"][index], expected[index][place]
            if step == 0:
                cause = "output"
            elif _same(got["output"], summed[index][place][0]):
                cause = "mean"
            else:
                cause = "trained" if step == 1 else "state"
            expect(f"lab04.zero3.{cause}", got["output"], right[0], atol=CLOSE, **where)
            gradient = got["input_gradient"]
            expect("lab04.zero3.input_gradient", gradient, right[1], atol=CLOSE, **where)


def _serial(case: LayerCase, scale: float) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Output and input gradient, by micro-batch and place; gradients are scaled over ranks."""
    layers = layers_of(case)
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters, **SETTINGS)
    rows = []
    for step in range(case.num_steps):
        for micro in range(case.num_micro_batches):
            inputs = [inputs_of(case, step, micro, rank) for rank in case.members]
            rows.append([_plain_pass(layers, x.requires_grad_()) for x in inputs])
        for parameter in parameters:
            assert parameter.grad is not None, "every layer was used"
            parameter.grad *= scale
        optimizer.step()
        optimizer.zero_grad()
    return rows


def _plain_pass(layers: Sequence[Callable], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x
    for layer in layers:
        y = layer(y)
    y.square().mean().backward()
    assert x.grad is not None, "the input needs a gradient"
    return y.detach(), x.grad


def _judge_held(case: LayerCase, seen: dict[str, Any], rank: int) -> None:
    where: dict[str, Any] = {"rank": rank, "case": case, "whole": NUMBER * sum(case.lengths)}
    part = case.share_bytes
    at_most("lab04.zero3.after_init", seen["init_bytes"], part, **where)
    for index, step in enumerate(seen["steps"]):
        micros = seen["micro"][index * case.num_micro_batches :][: case.num_micro_batches]
        for number, micro in enumerate(micros):
            parts = 2 if index or number else 1  # later on, gradients may be there
            told = where | {"activations": seen["activation_bytes"]}
            most = parts * part + seen["activation_bytes"]
            at_most("lab04.zero3.after_forward", micro["between_bytes"], most, **told)
            at_most("lab04.zero3.after_backward", micro["after_bytes"], 2 * part, **where)
        at_most("lab04.zero3.after_step", step["held_bytes"], 2 * part, **where)
    if len(case.members) > 1:  # alone, a rank's share is everything
        at_most("lab04.zero3.alive", seen["most_layers"], MOST_LAYERS, **where)
    at_most("lab04.zero.optimizer_bytes", seen["optimizer_bytes"], 2 * part, **where)


def _judge_sent(case: LayerCase, seen: dict[str, Any], rank: int) -> None:
    """A gather forward; a gather and a reduce-scatter backward; nothing in the step."""
    where: dict[str, Any] = {"rank": rank, "case": case}
    part = case.share_bytes
    least, most = NUMBER * sum(case.lengths) - part, (len(case.members) - 1) * part
    for micro in seen["micro"]:
        judge_sent("lab04.zero3.sent_forward", micro["forward"], least, most, **where)
        judge_sent("lab04.zero3.sent_backward", micro["backward"], 2 * least, 2 * most, **where)
    for step in seen["steps"]:
        judge_sent("lab04.zero3.sent_step", step["calls"], 0, 0, **where)


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool(((x - y).abs() <= CLOSE).all())
