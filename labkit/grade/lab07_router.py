"""Lab 07: the check of the router.

| promise      | decided by                                                             |
| ------------ | ---------------------------------------------------------------------- |
| the choice   | the k largest of softmax + bias, as a set                              |
| the weights  | the scores without bias, divided by their sum; in the place of indices |
| their origin | gradients of the logits, and none of the bias                          |
| the loss     | E Σ f P, and its gradient through P                                    |

Shapes: T tokens, E experts, k choices.
"""

from collections.abc import Iterator
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab07_ranks import run_route

CLOSE = 1e-12
COUNT_CLOSE = 1e-6  # a count divided by a count is float32 in torch
SIZES = ((6, 4, 2), (1, 5, 1), (9, 8, 3), (5, 3, 3), (4, 4, 1))  # T, E, k


def cases() -> list[tuple[torch.Tensor, ...]]:
    """Logits [T, E], a bias [E] that changes many choices, a gradient [T, k]."""
    found: list[tuple[torch.Tensor, ...]] = []
    for number, (T, E, k) in enumerate(SIZES):
        generator = torch.Generator().manual_seed(60 + number)
        logits, bias, grad = (
            torch.randn(*shape, generator=generator).double() for shape in ((T, E), (E,), (T, k))
        )
        found.append((logits, 0.3 * bias, grad))
    return found


def chosen(choice: torch.Tensor, scores: torch.Tensor, k: int, shares: bool = True) -> torch.Tensor:
    """Weights by expert [T, E], 0 for those that are not chosen."""
    mask = torch.zeros_like(scores).scatter(1, choice.topk(k, -1).indices, 1.0)
    weights = mask * scores
    return weights / weights.sum(-1, keepdim=True) if shares else weights


def loss_of(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """E Σ f P: f from the mask [T, E] of choices, P from the scores."""
    load = mask.double().sum(0) / mask.sum()
    return scores.shape[1] * (load * scores.mean(0)).sum()


def check_route(learner: Learner) -> Iterator[str]:
    """The choice, the weights, and the loss that keeps both even."""
    every = cases()
    (seen,) = learner.run(run_route, 1, every)
    for (logits, bias, grad), got in zip(every, seen, strict=True):
        (T, E), k = logits.shape, grad.shape[1]
        told: dict[str, Any] = {"case": f"{T} tokens, {E} experts, k={k}"}
        if got["changed"]:
            raise CheckFailed("lab07.route.input", **told)
        if got["indices"].shape != (T, k) or got["weights"].shape != (T, k):
            shapes = [list(got[name].shape) for name in ("indices", "weights")]
            raise CheckFailed("lab07.route.shape", expected=[T, k], got=shapes, **told)
        leaf = logits.clone().requires_grad_()
        scores = leaf.softmax(-1)
        wanted = chosen(scores + bias, scores, k)
        _judge_choice(got, logits, bias, wanted, told)
        picked = (wanted.gather(1, got["indices"]) * grad).sum()
        (expected,) = torch.autograd.grad(picked, leaf, retain_graph=True)
        _judge_gradient("lab07.route.weights_gradient", got["gradients"][0], expected, told)
        loss = loss_of(scores, wanted > 0)
        _judge_loss(got, scores.detach(), wanted.detach() > 0, loss, told)
        (expected,) = torch.autograd.grad(loss, leaf)
        _judge_gradient(
            "lab07.route.loss_gradient", got["gradients"][2], expected, told, COUNT_CLOSE
        )
        for of_bias in (got["gradients"][1], got["gradients"][3]):
            if of_bias is not None and bool(of_bias.any()):
                raise CheckFailed("lab07.route.bias_gradient", **told)
        expect("lab07.route.again", got["same"], True, **told)
    yield from ("choice", "weights", "gradients", "loss", "again")


def _judge_choice(
    got: dict[str, Any],
    logits: torch.Tensor,
    bias: torch.Tensor,
    wanted: torch.Tensor,
    told: dict[str, Any],
) -> None:
    wanted, k, have = wanted.detach(), got["indices"].shape[1], got["by_expert"]
    if have.shape == wanted.shape and _near(have, wanted):
        return
    s, columns = logits.softmax(-1), logits.softmax(0)
    shifted = (logits + bias).softmax(-1)
    causes = {
        "axis": (chosen(columns + bias, columns, k), chosen(columns + bias, columns, k, False)),
        "bias_in_weights": (chosen(s + bias, s + bias, k), chosen(s + bias, shifted, k)),
        "not_shared": (chosen(s + bias, s, k, shares=False),),
        "no_bias": (chosen(s, s, k),),
        "logits": (chosen(logits + bias, s, k),),
        "away": (chosen(s - bias, s, k),),
    }
    found = [name for name, values in causes.items() if any(_near(have, v) for v in values)]
    different = (have != 0) != (wanted != 0)
    token = int(((have - wanted).abs() > CLOSE).any(1).nonzero()[0])
    shown = {"token": token, "expected": _told(wanted[token]), "got": _told(have[token])}
    default = "choice" if bool(different.any()) else "weights"
    raise CheckFailed(f"lab07.route.{found[0] if found else default}", **shown, **told)


def _judge_loss(
    got: dict[str, Any],
    scores: torch.Tensor,
    mask: torch.Tensor,
    loss: torch.Tensor,
    told: dict[str, Any],
) -> None:
    E, k, value = scores.shape[1], got["indices"].shape[1], got["loss"]
    expected = loss.detach()
    if (
        value.shape == ()
        and value.dtype == expected.dtype
        and not _near(value, expected, COUNT_CLOSE)
    ):
        causes = {"loss_experts": expected / E, "loss_choices": k * expected}
        found = [name for name, v in causes.items() if _near(value, v, COUNT_CLOSE)]
        key = found[0] if found else "loss"
        raise CheckFailed(
            f"lab07.route.{key}", expected=f"{expected:.6g}", got=f"{value:.6g}", **told
        )
    expect("lab07.route.loss", value, expected, atol=COUNT_CLOSE, **told)


def _judge_gradient(
    key: str, got: Any, expected: torch.Tensor, told: dict[str, Any], atol: float = CLOSE
) -> None:
    if got is None:
        got = torch.zeros_like(expected)
    expect(key, got, expected, atol=atol, **told)


def _near(got: torch.Tensor, expected: torch.Tensor, atol: float = CLOSE) -> bool:
    return bool(((got - expected).abs() <= atol).all())


def _told(row: torch.Tensor) -> str:
    """Such as "0.4 from expert 1, 0.6 from expert 3"."""
    parts = [f"{value:.4g} from expert {e}" for e, value in enumerate(row.tolist()) if value]
    return ", ".join(parts) or "nothing"
