"""Lab 03, servers and the knee: what the bank of wrong solutions cannot show about their checks.

Promised: inputs differ from rank to rank; likely wrong results are wrong; the rule lets no script
exceed the bound, and holds nobody back without need; a message is complete only when its receiver
has asked for it; recorded runs are what the formula describes; one replayed rank stands for many;
knees are clear of the bound; no answer is longer than its text says. Oracle: hand-made values,
autograd, exhaustive search, replays of all ranks, the files themselves.
"""

import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.cost.collectives import ring_all_reduce_time_s
from labkit.grade.catalogue import entries
from labkit.grade.check import CheckFailed
from labkit.grade.lab03 import EXERCISES
from labkit.grade.lab03_knee import (
    ASKED,
    ASKED_IF_UNEVEN,
    CLOSE,
    CLOSE_IF_UNEVEN,
    KNEES,
    POWERS,
    RANKS,
    STEP_S,
    _causes,
    copies,
    recorded,
)
from labkit.grade.lab03_serve import SCENARIOS, _judge_free, follow
from labkit.grade.lab03_serve_ranks import SERVER, WORKERS, Scenario
from labkit.grade.lab03_server import CASES, _results
from labkit.grade.lab03_server_ranks import data_of, descent, gradient_of, weights_of
from labkit.launch import run_ranks
from labkit.measure.fabric import Fabric, replay

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab03_data_parallel.md"
MOST_LINES = {"data_parallel": 40, "serve": 17}
ALL_CASES = [case for cases in CASES.values() for case in cases]
SCRIPTS = [scenario for scenario in SCENARIOS if scenario.script]


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_wrong_results_are_wrong_and_every_rank_has_numbers_of_its_own(case):
    for draw in (gradient_of, weights_of):
        assert len({tuple(draw(case, rank).tolist()) for rank in case.members}) == len(case.members)
    for rank in case.members[1:]:
        expected, likely = _results(case, rank)
        for name, wrong in likely:
            assert not torch.allclose(expected, wrong, rtol=0, atol=1e-3), name


def test_the_cases_cover_what_the_lab_promises():
    assert {len(case.members) for case in ALL_CASES} == {1, 2, 3, 4}
    assert {case.dtype for case in ALL_CASES} == {torch.float32, torch.float64}
    assert len(ALL_CASES[0].members) == 3, "on two ranks an all-reduce has a server's bytes"
    assert {scenario.bound for scenario in SCENARIOS} == {0, 1, 2}


def test_descent_is_the_gradient():
    x, targets = data_of(ALL_CASES[0], 1)
    weights = torch.linspace(0, 1, 5, dtype=torch.float64, requires_grad=True)
    ((x @ weights - targets).square().mean() / 2).backward()
    torch.testing.assert_close(descent(weights.detach(), x, targets), weights.grad)


@pytest.mark.parametrize("scenario", SCRIPTS, ids=lambda s: s.script)
def test_the_rule_answers_every_pull_of_a_script(scenario):
    expected = follow(scenario, scenario.steps)
    assert max(expected.staleness, default=0) <= scenario.bound
    for rank in WORKERS:
        actions = [action for r, action in scenario.steps if r == rank]
        assert actions.count("ask") == actions.count("take")
        assert len(expected.given[rank]) == actions.count("pull") + actions.count("ask")


def test_by_hand():
    first = follow(SCENARIOS[0], SCENARIOS[0].steps)
    assert first.staleness == [0, 0, 2, 0]
    assert first.given == {2: [0], 3: [0, 1], 4: [3]}
    assert first.holds == {(4, 0): {"other": 2, "old": 0, "worst": 3, "new": 1}}
    assert first.versions[-1].tolist() == [-4, -1, -2, -1]


def futures(bound, steps, depth):
    """The largest staleness of every way to go on: who has weights pushes, who has none asks."""
    expected = follow(Scenario(name="any", bound=bound), steps)
    found = [max(expected.staleness, default=0)]
    for rank in WORKERS if depth else ():
        own = [action for r, action in steps if r == rank]
        if own.count("ask") == len(expected.given[rank]):  # else it waits
            action = "push" if own[-1:] == ["ask"] else "ask"
            found += futures(bound, [*steps, (rank, action)], depth - 1)
    return found


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_the_rule_keeps_the_bound_and_uses_it(bound):
    """Of all orders of seven steps of three workers none exceeds the bound; some reach it."""
    assert max(futures(bound, [], 7)) == bound


@pytest.mark.parametrize(
    ("staleness", "key"),
    [([1] * 18, "added"), ([0, *[1] * 16], "added"), ([0, 2, 0, *[1] * 15], "too_stale")],
)
def test_free_workers_add_up(staleness, key):
    """Of 18 pulls every one but the first misses one update."""
    free = SCENARIOS[-1]
    given = [torch.tensor([-float(version)]) for version in (0, *range(17))]
    seen = {rank: {"given": given[6 * i : 6 * i + 6]} for i, rank in enumerate(WORKERS)}
    final = torch.tensor([-18.0, -6.0, -6.0, -6.0], dtype=torch.float64)
    where = {"script": "free", "bound": free.bound}
    _judge_free(free, seen | {SERVER: {"result": (final, [0, *[1] * 17])}}, where)
    with pytest.raises(CheckFailed) as failure:
        _judge_free(free, seen | {SERVER: {"result": (final, staleness)}}, where)
    assert failure.value.key == f"lab03.serve.{key}"


def answered_late(group):
    """What rank 0 had told when rank 1's small message was complete."""
    store = group.get_group_store()
    if dist.get_rank(group) == 1:
        dist.send(torch.ones(1), 0, group)
        return store.check(["asked"])
    time.sleep(0.1)  # provokes the delay
    store.set("asked", "")
    dist.recv(torch.empty(1), group=group)
    return None


def test_a_message_is_complete_only_when_it_was_asked_for():
    assert run_ranks(answered_late, 2, debug=False)[1]


def by_formula(question):
    """The efficiency that the lab asks for."""
    ranks, forward_s, backward_s, size, buckets, alpha, beta = question
    message_s = ring_all_reduce_time_s(size / buckets, ranks, alpha, beta)
    share_s = backward_s / buckets
    waits_s = (buckets - 1) * max(share_s, message_s)
    return (forward_s + backward_s) / (forward_s + share_s + waits_s + message_s)


@pytest.mark.parametrize(
    ("part", "name", "ranks", "alpha", "beta"),
    [*ASKED, *(("uneven", *each) for each in ASKED_IF_UNEVEN)],
)
def test_the_formula_is_what_replays_say(part, name, ranks, alpha, beta):
    run = recorded()[name]
    question = (ranks, *run.question(alpha, beta))
    error = abs(by_formula(question) / (STEP_S / run.step_s(ranks, alpha, beta)) - 1)
    if part == "uneven":
        assert CLOSE / 10 < error < CLOSE_IF_UNEVEN / 5
    else:
        assert error < 1e-9
        message_s = ring_all_reduce_time_s(run.payloads[0], ranks, alpha, beta)
        assert (message_s > question[2] / question[4]) == (part in ("long", "one_bucket"))
    right = by_formula(question)
    assert not list(_causes(question, right, right))


def test_runs_are_alike_on_all_ranks_and_have_equal_buckets():
    for name, run in recorded().items():
        assert all(log == run.logs[0] for log in run.logs)
        assert len(run.logs) == RANKS
        assert (len(set(run.payloads)) == 1) == (name != "layers that differ")
        layers = int(name.partition(" ")[0]) if name[0].isdigit() else 5
        assert len(run.payloads) == layers


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 16, 64])
def test_one_rank_stands_for_many(ranks):
    for name, alpha, beta in KNEES:
        run = recorded()[name]
        fabric = Fabric(alpha=alpha, beta=beta, flops=run.flops)
        full_s = replay(copies(run.logs[0], ranks), fabric).step_s
        assert run.quick_step_s(ranks, alpha, beta) == pytest.approx(full_s, rel=1e-12)


def test_knees_are_of_all_kinds_and_clear_of_the_bound():
    knees = [recorded()[name].knee(*link) for name, *link in KNEES]
    assert {None, 2, 4096} < set(knees)
    assert len(set(knees)) >= 6
    for name, *link in KNEES:
        run = recorded()[name]
        values = [STEP_S / run.quick_step_s(n, *link) for n in POWERS]
        assert values == sorted(values, reverse=True)
        assert min(abs(value - 0.8) for value in values) > 0.002


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    keys = [f"server.{name}" for name, _ in _results(ALL_CASES[0], 1)[1]] + ["server.values"]
    keys += [f"serve.{s.name}" for s in SCENARIOS if s.name in ("leaves", "again")]
    keys += [f"serve.{key}" for key in ("waits", "snapshot", "weights", "counted", "staleness")]
    keys += [f"efficiency.{part}" for part in {part for part, *_ in ASKED} | {"uneven"}]
    question = (4, 1.0, 1.0, 1.0, 2, 1.0, 1.0)
    for got in (1 / 3, 0.1, 0.2, 0.25):
        keys += [f"efficiency.{cause}" for cause in _causes(question, 1 / 3, got)]
    keys += [f"efficiency.{key}" for key in ("after", "too_early", "last_only", "percent")]
    keys += ["efficiency.upside_down", "knee.values", "knee.never", "knee.last"]
    assert {f"lab03.{key}" for key in keys} <= set(entries("lab03"))


def test_no_answer_is_longer_than_its_text_says():
    cells = re.findall(
        r"^:exercise: lab03\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {f"lab03.{name}" for name, _ in cells} == {exercise.id for exercise in EXERCISES}
    for name, text in cells:
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= MOST_LINES.get(name, 15), f"{name}: {own} lines"
