"""Lab 03: the check of the bug hunt, a training step over texts of different lengths.

    gradient = sum over ranks and micro-batches of the summed losses' gradients / all scored tokens

The fault is a mean of means: right where every micro-batch of every rank scores equally many
tokens. Its ledger is that of a right program. The oracle is one process.

Shapes: B batch, T sequence, V words.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.measure.ledger import CommLedger

NUM_WORDS = 11
IGNORE = -100
ROWS, LENGTH = 2, 6  # of a micro-batch
CLOSE = 1e-12  # float64; the order of additions is free
COUNT_BYTES = 8  # of the number of tokens, which may travel beside the gradients
TIMEOUT_S = 6.0

Amounts = Sequence[Sequence[int]]  # by rank and micro-batch: how many targets are scored
CASES: dict[int, tuple[Amounts, ...]] = {
    2: (
        ((9, 3), (2, 4)),
        ((0, 0), (6, 11, 3)),
        ((12, 12), (12, 12)),  # even: here the fault does not show
    ),
    1: (((2, 8, 5),),),
}


class Reader(nn.Module):
    """A small language model, the same on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_WORDS, 5)
        self.head = nn.Linear(5, NUM_WORDS)
        self.double()
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(words)))  # [B, T, V]


def texts(scored: Sequence[int], place: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A rank's micro-batches: inputs and targets, [B, T] each."""
    generator = torch.Generator().manual_seed(50 + place)
    found = []
    for count in scored:
        words = torch.randint(0, NUM_WORDS, (ROWS, LENGTH + 1), generator=generator)
        targets = torch.full((ROWS * LENGTH,), IGNORE)
        targets[:count] = words[:, 1:].flatten()[:count]
        found.append((words[:, :-1], targets.view(ROWS, LENGTH)))
    return found


def run_suspect(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[Amounts]
) -> list[dict[str, Any]]:
    """On each rank: learner(model, micro_batches, group) for every case, and once more."""
    place, seen = dist.get_rank(world), []
    for amounts in cases:
        model = Reader()
        with CommLedger() as ledger:
            learner(model, texts(amounts[place], place), world)
        payload = sum(call.payload_bytes for call in ledger.ops)
        first = _gradients(model)
        learner(model, texts(amounts[place], place), world)
        seen.append(
            {
                "gradients": first,
                "again": _gradients(model),
                "weights": [p.detach() for p in model.parameters()],
                "payload": payload,
            }
        )
    return seen


def _gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def check_suspect(learner: Learner) -> Iterator[str]:
    """The gradient of the mean loss over all scored tokens, however they are spread."""
    for world_size, cases in CASES.items():
        by_rank = learner.run(run_suspect, world_size, cases, timeout=TIMEOUT_S)
        for index, amounts in enumerate(cases):
            for rank, seen in enumerate(by_rank):
                where = {"rank": rank, "amounts": str([list(row) for row in amounts])}
                _judge(seen[index], results(amounts, rank), where)
    yield from ("gradients", "weights", "bytes")


def _judge(
    seen: dict[str, Any], likely: dict[str, list[torch.Tensor]], where: dict[str, Any]
) -> None:
    reader = Reader()
    names = list(dict(reader.named_parameters()))
    for name, got, given in zip(names, seen["weights"], reader.parameters(), strict=True):
        expect("lab03.suspect.weights", got, given.detach(), name=name, **where)
    expected = likely["values"]
    for index, name in enumerate(names):
        got = seen["gradients"][index]
        if not isinstance(got, torch.Tensor):
            raise CheckFailed("lab03.suspect.no_gradient", name=name, **where)
        key = f"lab03.suspect.{_cause(got, index, likely)}"
        expect(key, got, expected[index], atol=CLOSE, name=name, **where)
        again = seen["again"][index]
        expect("lab03.suspect.again", again, expected[index], atol=CLOSE, name=name, **where)
    least = sum(p.nbytes for p in reader.parameters())
    if not least <= seen["payload"] <= least + COUNT_BYTES:
        raise CheckFailed("lab03.suspect.bytes", expected=least, got=seen["payload"], **where)


def _cause(got: torch.Tensor, index: int, likely: dict[str, list[torch.Tensor]]) -> str:
    """The likeliest mistake behind a wrong gradient: the end of a message's key."""
    if got.isnan().any():
        return "nan"
    for cause, values in likely.items():
        if got.shape == values[index].shape and torch.allclose(got, values[index], rtol=1e-9):
            return cause
    return "values"


def results(amounts: Amounts, rank: int) -> dict[str, list[torch.Tensor]]:
    """The right gradients on this rank, and wrong ones that have a message of their own."""
    parts = [
        [_summed(*text) for text in texts(scored, place)] for place, scored in enumerate(amounts)
    ]
    num_ranks, tokens = len(amounts), sum(map(sum, amounts))
    of_ranks = [torch.stack(row).sum(0) for row in parts]
    total = torch.stack(of_ranks).sum(0)
    means = [
        torch.stack([part / max(1, n) for part, n in zip(row, scored, strict=True)]).mean(0)
        for row, scored in zip(parts, amounts, strict=True)
    ]
    weighted = [mean * sum(scored) for mean, scored in zip(means, amounts, strict=True)]
    rank_means = [
        part / max(1, sum(scored)) for part, scored in zip(of_ranks, amounts, strict=True)
    ]
    flat = {
        "values": total / tokens,
        "of_means": torch.stack(means).mean(0),
        "of_rank_means": torch.stack(rank_means).mean(0),
        "of_micro_means": torch.stack(weighted).sum(0) / tokens,
        "padding": total / (ROWS * LENGTH * sum(map(len, amounts))),
        "own_count": total / max(1, sum(amounts[rank])),
        "undivided": total,
        "local": rank_means[rank],
        "twice": total / tokens / num_ranks,
    }
    like = list(Reader().parameters())
    sizes = [p.numel() for p in like]
    return {
        name: [g.view(p.shape) for g, p in zip(whole.split(sizes), like, strict=True)]
        for name, whole in flat.items()
    }


def _summed(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The flat gradient of the sum of one micro-batch's losses."""
    model = Reader()
    logits = model(inputs).flatten(0, 1)  # [B·T, V]
    cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="sum").backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
