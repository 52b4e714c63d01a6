"""Lab 03: the check of the asynchronous parameter server.

It is judged by what it gives to scripted workers. Gradients of ones make the weights count the
updates, in all and of each worker, so weights tell their version. What must come when follows from
one rule, applied here step by step:

    version + number computing − oldest version among them <= bound

Where workers follow no script, the order of updates is not known, but what all staleness adds up to
is: the updates before each update, 0 + 1 + ..., less the versions that the workers were given.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab03_serve_ranks import SERVER, WORKERS, Scenario, run_serve
from labkit.grade.lab03_server import all_waited

SCENARIOS = (
    Scenario(
        name="holds",
        bound=2,
        script="2 pull, 3 pull, 3 push, 3 pull, 4 ask, 3 push, 2 push, 4 take, 4 push",
    ),
    Scenario(
        name="holds",
        bound=1,
        script="4 pull, 2 pull, 3 ask, 2 push, 4 push, 3 take, 3 push",
        start=8.0,
        lr=0.5,
        gradient=4.0,
    ),
    Scenario(
        name="turns",
        bound=0,
        script="2 pull, 3 ask, 4 ask, 2 push, 3 take, 3 push, 4 take, 4 push",
    ),
    Scenario(name="leaves", bound=0, script="2 pull, 3 ask, 2 leave, 3 take, 3 push, 4 leave"),
    Scenario(name="again", bound=1, script="2 pull, 3 pull, 3 push, 2 pull, 2 push, 3 pull"),
    Scenario(name="free", bound=1, free_pushes=6),
)
TIMEOUT_S = 15.0  # whoever is stuck is told long before


def check_serve(learner: Learner) -> Iterator[str]:
    """Workers are given the weights that the rule has for them, when it has them."""
    by_rank = _run_script(learner)
    for number, scenario in enumerate(SCENARIOS):
        seen = {rank: by_rank[rank][number] for rank in (SERVER, *WORKERS)}
        where: dict[str, Any] = {"script": _told(scenario), "bound": scenario.bound}
        all_waited(seen[SERVER]["events"], rank=SERVER, case=where["script"])
        judge = _judge_free if scenario.free_pushes else _judge_script
        judge(scenario, seen, where)
    alone = {"script": "no worker at all", "bound": SCENARIOS[0].bound}
    _judge_end(SCENARIOS[0], by_rank[SERVER][-1], SCENARIOS[0].first_weights(), [], alone)
    yield from ("updates", "bound", "nobody_waits", "staleness", "leaving")


def _run_script(learner: Learner) -> list[Any]:
    """learner.run, with messages of their own for a step that nobody serves."""
    try:
        return learner.run(run_serve, 1 + SERVER + len(WORKERS), SCENARIOS, timeout=TIMEOUT_S)
    except CheckFailed as failure:
        stuck = re.search(r"Stuck: (\d+) (\d+) (True|False)", str(failure.values.get("error", "")))
        if failure.key != "run.raised" or stuck is None:
            raise
        scenario, step = SCENARIOS[int(stuck[1])], int(stuck[2])
    where = {"script": _told(scenario), "bound": scenario.bound}
    if scenario.free_pushes or step == len(scenario.steps):
        raise CheckFailed("lab03.serve.endless", **where)
    rank, action = scenario.steps[step]
    where |= {"rank": rank, "action": action, "step": step + 1}
    if stuck[3] == "True":
        raise CheckFailed("lab03.serve.early", **where)
    known = scenario.name in ("leaves", "again") and action in ("pull", "take")
    raise CheckFailed(f"lab03.serve.{scenario.name if known else 'waits'}", **where)


def _told(scenario: Scenario) -> str:
    if scenario.free_pushes:
        return f"each worker pulls and pushes {scenario.free_pushes} times"
    return ", ".join(f"{rank} {action}" for rank, action in scenario.steps)


@dataclass(kw_only=True)
class Expected:
    """What the rule makes of a script.

    Args:
        versions: weights after 0, 1, 2, ... updates.
        given: by worker, versions of the weights in the order of its pulls.
        holds: (worker, number of its pull) of those that were held back, by whom.
    """

    versions: list[torch.Tensor]
    staleness: list[int] = field(default_factory=list)
    given: dict[int, list[int]] = field(default_factory=lambda: {rank: [] for rank in WORKERS})
    holds: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)


def follow(scenario: Scenario, steps: Iterable[tuple[int, str]]) -> Expected:
    """The rule, step by step."""
    expected = Expected(versions=[scenario.first_weights()])
    waiting: list[int] = []
    computing: dict[int, int] = {}
    for rank, action in steps:
        if action == "take":
            continue
        pulled = computing.pop(rank, 0)
        if action in ("pull", "ask"):
            waiting.append(rank)
        elif action == "push":
            update = scenario.lr * scenario.gradient_of(rank)
            expected.staleness.append(len(expected.versions) - 1 - pulled)
            expected.versions.append(expected.versions[-1] - update)
        version = len(expected.versions) - 1
        while waiting:
            oldest = min(computing, key=lambda r: computing[r], default=None)
            worst = 0 if oldest is None else version + len(computing) - computing[oldest]
            if oldest is not None and worst > scenario.bound:
                place = (waiting[0], len(expected.given[waiting[0]]))
                hold = {"other": oldest, "old": computing[oldest], "worst": worst, "new": version}
                expected.holds.setdefault(place, hold)
                break
            computing[waiting[0]] = version
            expected.given[waiting.pop(0)].append(version)
    return expected


def _judge_script(
    scenario: Scenario, seen: dict[int, dict[str, Any]], where: dict[str, Any]
) -> None:
    expected = follow(scenario, scenario.steps)
    for rank in WORKERS:
        for pull, version in enumerate(expected.given[rank]):
            got, right = seen[rank]["given"][pull], expected.versions[version]
            if torch.equal(got, right):
                continue
            hold = expected.holds.get((rank, pull))
            if hold and torch.equal(got, expected.versions[hold["new"]]):
                raise CheckFailed("lab03.serve.bound", rank=rank, **hold, **where)
            cause = "snapshot" if torch.equal(got, expected.versions[0]) else "weights"
            told = {"rank": rank, "pull": pull + 1, "version": version}
            expect(f"lab03.serve.{cause}", got, right, **told, **where)
    final, staleness = expected.versions[-1], expected.staleness
    _judge_end(scenario, seen[SERVER], final, staleness, where)


def _judge_free(scenario: Scenario, seen: dict[int, dict[str, Any]], where: dict[str, Any]) -> None:
    """No order is known here, but what all staleness adds up to: updates before less versions."""
    given = [weights for rank in WORKERS for weights in seen[rank]["given"]]
    total = len(given)
    last = scenario.first_weights()
    for rank in WORKERS:
        last = last - scenario.free_pushes * scenario.lr * scenario.gradient_of(rank)
    _judge_result(seen[SERVER]["result"])
    final, staleness = seen[SERVER]["result"]
    expect("lab03.serve.lost", final, last, **where)
    added = total * (total - 1) // 2 - round(sum(-float(weights[0]) for weights in given))
    expect("lab03.serve.added", (len(staleness), sum(staleness)), (total, added), **where)
    if max(staleness) > scenario.bound or min(staleness) < 0:
        raise CheckFailed("lab03.serve.too_stale", got=list(staleness), **where)


def _judge_end(
    scenario: Scenario,
    seen: dict[str, Any],
    final: torch.Tensor,
    staleness: list[int],
    where: dict[str, Any],
) -> None:
    """What serve returned, and whether it left its input alone."""
    _judge_result(seen["result"])
    expect("lab03.serve.lost", seen["result"][0], final, **where)
    got = list(seen["result"][1])
    key = "counted" if got == [0] * len(staleness) and any(staleness) else "staleness"
    expect(f"lab03.serve.{key}", got, staleness, **where)
    expect("lab03.serve.input", seen["weights"], scenario.first_weights(), **where)
    if seen["aliased"]:
        raise CheckFailed("lab03.serve.aliased", **where)


def _judge_result(result: Any) -> None:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise CheckFailed("lab03.serve.result", got=type(result).__name__)
    if not isinstance(result[1], (tuple, list)):
        told = f"{type(result[1]).__name__} in the second place"
        raise CheckFailed("lab03.serve.result", got=told)
    if any(type(each) is not int for each in result[1]):
        raise CheckFailed("lab03.serve.result", got="staleness that is no whole number")
