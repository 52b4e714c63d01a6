"""Lab 03: the check of int8 gradients with error feedback.

    wanted = gradient + residual,  scale = max |wanted| / 127,  codes = round(wanted / scale)
    mean = (scale_0 codes_0 + ... + scale_{N-1} codes_{N-1}) / N,  residual' = wanted - scale codes

Cost: an all-gather of n codes and of one float32 scale; a rank sends (N-1)(n + 4) bytes.
The numbers of most cases are whole multiples of powers of two, so that scale, codes and residual
are exact whichever way they are computed. No code lies halfway between two integers.
Source: Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014; arXiv 1901.09847.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab02_ranks import watch
from labkit.measure.events import Launch, Wait

TIMEOUT_S = 6.0
BOTH, THREE = (0, 1), (0, 1, 2)
CLOSE = 1e-6  # of numbers up to 4: what adding and dividing in float32 may lose
NUM_STEPS, NUM_INPUTS, BATCH = 50, 32, 32
LEARNING_RATE = 0.1
MARGIN = 1.5  # the loss may be so many times that of float32


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: who takes part, on what.

    Args:
        members: global ranks of the group.
        zeros: places in the group whose gradient and residual are 0.
    """

    members: tuple[int, ...]
    shape: tuple[int, ...]
    zeros: tuple[int, ...] = ()
    seed: int = 1

    def __str__(self) -> str:
        zero = f", all 0 at the places {list(self.zeros)}" if self.zeros else ""
        return f"ranks {list(self.members)}, float32 {list(self.shape)}{zero}"


CASES = {
    2: (
        Case(members=BOTH, shape=(9,)),
        Case(members=BOTH, shape=(7, 11), seed=2),
        Case(members=BOTH, shape=(5,), zeros=(1,), seed=3),
        Case(members=BOTH, shape=(4,), zeros=BOTH, seed=4),
    ),
    3: (
        Case(members=THREE, shape=(50,), seed=5),
        Case(members=(0, 2), shape=(3,), seed=6),
        Case(members=(1,), shape=(6,), seed=7),
    ),
}


def draw(case: Case, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient and residual of one rank; every rank has another scale, a power of two."""
    if place in case.zeros:
        return torch.zeros(case.shape), torch.zeros(case.shape)
    generator = torch.Generator().manual_seed(100 * case.seed + place)
    codes = torch.randint(-126, 127, case.shape, generator=generator)
    codes.view(-1)[place % codes.numel()] = 127 if case.seed % 2 else -127
    quarters = torch.randint(-1, 2, case.shape, generator=generator)
    quarters[codes.abs() == 127] = 0
    scale = 2.0 ** -(5 + place)
    wanted = scale * (codes + quarters / 4)
    residual = scale / 4 * torch.randint(-60, 61, case.shape, generator=generator)
    return wanted - residual, residual


def run_cases(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """On each rank: learner(gradient, residual, group) for every case; None for no member."""
    everybody = tuple(range(dist.get_world_size()))
    groups = [
        world if case.members == everybody else dist.new_group(list(case.members)) for case in cases
    ]
    seen: list[dict[str, Any] | None] = []
    for case, group in zip(cases, groups, strict=True):
        if dist.get_rank() in case.members:
            inputs = draw(case, dist.get_rank(group))
            seen.append(watch(learner, inputs, [group], str(case)))
        else:
            seen.append(None)
    return seen


def batches(place: int, units: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's inputs and noise, step by step."""
    generator = torch.Generator().manual_seed(place)
    for _ in range(NUM_STEPS):
        x = units * torch.randn(BATCH, NUM_INPUTS, generator=generator)
        yield x, 0.1 * torch.randn(BATCH, generator=generator)


def regression() -> tuple[torch.Tensor, torch.Tensor]:
    """Units of the inputs, one in millimetres and the others in metres, and the right weights."""
    units = torch.ones(NUM_INPUTS)
    units[0] = 1000.0
    return units, torch.linspace(-1, 1, NUM_INPUTS) / units


def train(world: dist.ProcessGroup, learner: Callable) -> torch.Tensor:
    """On each rank: the weights after 50 steps with the learner's mean."""
    units, goal = regression()
    weights, residual = torch.zeros(NUM_INPUTS), torch.zeros(NUM_INPUTS)
    for x, noise in batches(dist.get_rank(world), units):
        gradient = x.T @ (x @ (weights - goal) - noise) / BATCH
        mean, residual = learner(gradient, residual, world)
        weights = weights - LEARNING_RATE * mean / units**2  # a step size for each weight
    return weights


def train_alone(num_ranks: int) -> torch.Tensor:
    """The same steps on one process, with nothing rounded to int8."""
    units, goal = regression()
    weights = torch.zeros(NUM_INPUTS)
    for parts in zip(*(batches(place, units) for place in range(num_ranks)), strict=True):
        gradients = [x.T @ (x @ (weights - goal) - noise) / BATCH for x, noise in parts]
        weights = weights - LEARNING_RATE * torch.stack(gradients).mean(0) / units**2
    return weights


def loss(weights: torch.Tensor) -> float:
    """Mean squared error over all inputs there could be: they are independent."""
    units, goal = regression()
    return float(((weights - goal) * units).square().sum())


def check_compressed_all_reduce(learner: Learner) -> Iterator[str]:
    """The mean of int8 gradients, and what rounding kept back."""
    for world_size, cases in CASES.items():
        by_rank = learner.run(run_cases, world_size, cases, timeout=TIMEOUT_S)
        for index, case in enumerate(cases):
            _judge(case, [by_rank[rank][index] for rank in case.members])
    yield from ("mean", "residual", "inputs", "bytes")
    trained, alone = learner.run(train, 2, timeout=TIMEOUT_S), loss(train_alone(2))
    for rank, weights in enumerate(trained):
        got = loss(weights)
        if not got <= MARGIN * alone:
            told = {"expected": f"{alone:.2g}", "got": f"{got:.2g}", "margin": MARGIN}
            raise CheckFailed("lab03.compressed.loss", rank=rank, steps=NUM_STEPS, **told)
    yield "loss"


def _judge(case: Case, seen: Sequence[dict[str, Any]]) -> None:
    drawn = [draw(case, place) for place in range(len(case.members))]
    for place, outcome in enumerate(seen):
        where: dict[str, Any] = {"rank": case.members[place], "case": case}
        result = outcome["result"]
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise CheckFailed("run.type", expected="two tensors", got=type(result).__name__)
        for name, before, after in zip(
            ("gradient", "residual"), drawn[place], outcome["inputs"], strict=True
        ):
            expect("lab03.compressed.input", after, before, name=name, **where)
        _judge_calls(case, outcome, where)
        for name, got, likely in zip(
            ("mean", "residual"), result, results(drawn, place), strict=True
        ):
            expected = likely["values"]
            key = f"lab03.compressed.{name}_{_cause(got, likely)}"
            expect(key, got, expected, atol=CLOSE, **where)
        if outcome["aliased"]:
            raise CheckFailed("lab03.compressed.aliased", **where)
        for got, first in zip(outcome["again"], result, strict=True):
            expect("lab03.compressed.again", got, first, **where)


def _judge_calls(case: Case, outcome: dict[str, Any], where: dict[str, Any]) -> None:
    waited = {event.id for event in outcome["events"] if isinstance(event, Wait)}
    for event in outcome["events"]:
        if isinstance(event, Launch) and event.id not in waited:
            raise CheckFailed("lab03.compressed.unwaited", operation=event.operation, **where)
    for call in outcome["calls"]:
        if call.reduce_op is not None:
            raise CheckFailed("lab03.compressed.summed", operation=call.operation, **where)
    numel = torch.Size(case.shape).numel()
    expected = (len(case.members) - 1) * (numel + 4)
    got = int(sum(call.bytes_sent for call in outcome["calls"]))
    whole = 2 * (len(case.members) - 1) / len(case.members) * 4 * numel
    expect("lab03.compressed.bytes", got, expected, whole=f"{whole:g}", **where)


def _cause(got: Any, likely: dict[str, torch.Tensor]) -> str:
    """The likeliest mistake behind a wrong tensor: the end of a message's key."""
    expected = likely["values"]
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return "values"
    if got.isnan().any():
        return "nan"
    for cause, value in likely.items():
        if torch.allclose(got.to(value), value, rtol=0, atol=CLOSE):
            return cause
    return "values"


def results(
    drawn: Sequence[tuple[torch.Tensor, torch.Tensor]], place: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Mean and residual on this rank: the right ones, and wrong ones with their own message."""
    wanted = [gradient + residual for gradient, residual in drawn]
    sent = [dequantised(w) for w in wanted]
    scales = [w.abs().max() / 127 for w in wanted]
    codes = [s / max(float(scale), 1e-30) for s, scale in zip(sent, scales, strict=True)]
    gradient, residual = drawn[place]
    mean = torch.stack(sent).mean(0)
    means = {
        "values": mean,
        "sum": mean * len(wanted),
        "unrounded": torch.stack(wanted).mean(0),
        "without": torch.stack([dequantised(g) for g, _ in drawn]).mean(0),
        "own": sent[place],
        "scale": torch.stack(codes).mean(0) * scales[place],
    }
    lost = wanted[place] - sent[place]
    residuals = {
        "values": lost,
        "dropped": torch.zeros_like(lost),
        "sign": -lost,
        "of_mean": wanted[place] - mean,
        "old": residual,
        "without": gradient - sent[place],
        "added": lost + residual,
    }
    return means, residuals


def dequantised(x: torch.Tensor) -> torch.Tensor:
    """What arrives of a tensor: int8 codes times one scale."""
    scale = x.abs().max() / 127
    return scale * (x / scale).round() if scale > 0 else torch.zeros_like(x)
