"""Lab 07: the check of gradients on dp x ep ranks.

The oracle is the mean loss over the tokens of all ranks, on one process. Each rank starts with what
its backward leaves: of dense parameters the gradient of its own loss; of its experts the sum over
the losses of its ep group, because their tokens came to it.

Dense ones are averaged over all ranks. Experts' are summed over dp, and divided by all ranks.
"""

from collections.abc import Iterator
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab07_ranks import WIDTH, Expert, Layout, run_sync

CLOSE = 1e-12
TOKENS, PER_RANK = 4, 2  # of each rank: tokens, and experts
WORLDS = (
    (4, (Layout(members=(0, 1, 2, 3), dp=2, ep=2),)),
    (3, (Layout(members=(0, 1, 2), dp=3, ep=1), Layout(members=(0, 2), dp=1, ep=2))),
    (1, (Layout(members=(0,), dp=1, ep=1),)),
)
Gradients = dict[str, list[torch.Tensor]]


def rank_loss(rank: int, dense: torch.Tensor, experts: list[Expert]) -> torch.Tensor:
    """Mean loss of one rank's tokens; every expert has some of them."""
    generator = torch.Generator().manual_seed(80 + rank)
    x = torch.randn(TOKENS, WIDTH, generator=generator).double()
    shares = torch.rand(TOKENS, len(experts), generator=generator).double().softmax(-1)
    answers = torch.stack([expert(x * dense) for expert in experts], 1)  # [T, E, D]
    return (shares.unsqueeze(-1) * answers).sum(1).square().mean()


def gradients(layout: Layout) -> tuple[list[Gradients], list[Gradients]]:
    """What each place has before, and must have after."""
    N = layout.dp * layout.ep
    experts = [Expert(number) for number in range(layout.ep * PER_RANK)]
    matrices = [expert.matrix for expert in experts]
    dense = torch.linspace(0.5, 1.5, WIDTH, dtype=torch.float64).requires_grad_()
    losses = [rank_loss(place, dense, experts) for place in range(N)]
    of_rank = [_derived(loss, [dense, *matrices]) for loss in losses]
    mean = _derived(sum(losses, torch.zeros(())) / N, [dense, *matrices])
    before, after = [], []
    for place in range(N):
        d, e = divmod(place, layout.ep)
        own = range(1 + e * PER_RANK, 1 + (e + 1) * PER_RANK)
        peers = of_rank[d * layout.ep : (d + 1) * layout.ep]
        sums = [torch.stack([grads[i] for grads in peers]).sum(0) for i in own]
        before.append({"dense": [of_rank[place][0]], "experts": sums})
        after.append({"dense": [mean[0]], "experts": [mean[i] for i in own]})
    return before, after


def _derived(loss: torch.Tensor, of: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, of, retain_graph=True))


def check_sync_gradients(learner: Learner) -> Iterator[str]:
    """The gradient of the mean loss, for both kinds of parameters."""
    for world_size, layouts in WORLDS:
        trials = [(layout, gradients(layout)[0]) for layout in layouts]
        by_rank = learner.run(run_sync, world_size, trials)
        for index, layout in enumerate(layouts):
            seen = [by_rank[rank][index] for rank in layout.members]
            before, after = gradients(layout)
            for place, got in enumerate(seen):
                told = {"rank": layout.members[place], "case": layout}
                if got["changed"]:
                    raise CheckFailed("lab07.sync_gradients.weights", **told)
                for kind in ("dense", "experts"):
                    _judge(kind, layout, place, got, (before, after), told)
                _judge_bytes(layout, got, before[place], told)
    yield from ("dense", "experts", "bytes", "again")


def _judge(
    kind: str,
    layout: Layout,
    place: int,
    got: dict[str, Any],
    oracle: tuple[list[Gradients], list[Gradients]],
    told: dict[str, Any],
) -> None:
    before, after = oracle
    values = zip(got["first"][kind], got["second"][kind], after[place][kind], strict=True)
    for index, (value, again, expected) in enumerate(values):
        starts = [of_place[kind][index] for of_place in before]
        cause = "values"
        if isinstance(value, torch.Tensor) and value.shape == expected.shape:
            cause = _cause(layout, place, value, expected, starts)
        expect(f"lab07.sync_gradients.{kind}_{cause}", value, expected, atol=CLOSE, **told)
        expect("lab07.sync_gradients.again", again, value, atol=CLOSE, **told)


def _cause(
    layout: Layout,
    place: int,
    value: torch.Tensor,
    expected: torch.Tensor,
    starts: list[torch.Tensor],
) -> str:
    """What a wrong gradient is instead: the end of a message's key."""
    d, e = divmod(place, layout.ep)
    N, ep = len(starts), layout.ep
    likely = {
        "local": starts[place],
        "over_dp": torch.stack(starts[e::ep]).mean(0),
        "over_ep": torch.stack(starts[d * ep : (d + 1) * ep]).mean(0),
        "sum": N * expected,
        "mixed": torch.stack(starts).mean(0),
        "divided": expected / ep,
    }
    for cause, other in likely.items():
        if not _near(other, expected) and _near(value, other):
            return cause
    return "values"


def _near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(((got - expected).abs() <= CLOSE).all())


def _judge_bytes(
    layout: Layout, got: dict[str, Any], before: Gradients, told: dict[str, Any]
) -> None:
    dense, experts = (sum(8 * g.numel() for g in before[k]) for k in ("dense", "experts"))
    over_dp, over_ep = (2 * (n - 1) / n for n in (layout.dp, layout.ep))
    for call in got["calls"]:
        if call.axis not in ("dp", "ep", "both"):
            raise CheckFailed("lab07.sync_gradients.other_group", got=call.axis, **told)
    most = (dense + experts) * over_dp + dense * over_ep  # dense: along one axis, then the other
    sent = sum(call.bytes_sent for call in got["calls"])
    if sent > most:
        shown = {"expected": f"{most:g}", "got": f"{sent:g}"}
        raise CheckFailed("lab07.sync_gradients.bytes", **shown, **told)
