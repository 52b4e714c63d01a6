"""Pictures of experts show what a routing does.

Promised: a copy leaves from and lands on the place that sorting gives it, in the numbers that
labkit.cost.experts counts; orange lines are the copies that travel; bars split into home, away and
dropped add up; pictures and their lines of words say the same numbers.
Oracles: torch's stable argsort, cost.experts, numbers counted by hand.
"""

import re
from collections import Counter

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from labkit.cost.experts import ExpertShape, dispatch_bytes, rank_loads
from labkit.viz.experts import chosen_of, dispatch_alt, draw_dispatch, draw_router, router_alt
from labkit.viz.experts_load import (
    Load,
    draw_imbalance,
    expert_loads,
    imbalance_alt,
    load_svg,
    load_told,
)
from labkit.viz.experts_moves import loads_of, moves, num_away
from labkit.viz.splits import RANK_COLOURS
from labkit.viz.style import COMMUNICATION, COMPUTE, IDLE, new_figure

EXPERTS, RANKS = 8, 4
CHOICES = [[[1, 0], [7, 1]], [[3, 2], [2, 6]], [[0, 1], [1, 7]], [[5, 1], [1, 0]]]
SCORES = [0.1, 0.3, 0.05, 0.25, 0.1, 0.1, 0.05, 0.05]


def counts():
    """[rank][expert]."""
    found = [Counter(e for token in tokens for e in token) for tokens in CHOICES]
    return [[each[expert] for expert in range(EXPERTS)] for each in found]


def test_copies_lie_where_sorting_puts_them():
    made = moves(CHOICES, EXPERTS)
    for rank, tokens in enumerate(CHOICES):
        chosen = torch.tensor(tokens).flatten()
        order = chosen.argsort(stable=True)
        own = sorted((m for m in made if m.source == rank), key=lambda m: m.place)
        assert [m.place for m in own] == list(range(len(chosen)))
        assert [m.token for m in own] == (order // 2).tolist()
        assert [m.expert for m in own] == chosen[order].tolist()
    for rank in range(RANKS):
        here = sorted((m for m in made if m.target == rank), key=lambda m: m.there)
        assert [m.there for m in here] == list(range(len(here)))
        assert all(m.expert // 2 == rank for m in here)
        assert [(m.expert, m.source) for m in here] == sorted((m.expert, m.source) for m in here)


def test_as_many_travel_as_the_cost_says():
    made = moves(CHOICES, EXPERTS)
    sizes = dict(hidden_size=1, intermediate_size=1, num_experts=EXPERTS, top_k=2)
    shape = ExpertShape(**sizes, ep=RANKS, number_bytes=1)
    assert num_away(made) == sum(dispatch_bytes(shape, counts(), r) for r in range(RANKS)) == 10
    columns = zip(*rank_loads(shape, counts()), strict=True)
    assert loads_of(made, RANKS) == [sum(column) for column in columns]


def test_lines_and_squares_of_the_dispatch():
    axes = draw_dispatch(new_figure(3.9).add_subplot(), CHOICES, EXPERTS)
    lines = Counter(line.get_color() for line in axes.lines)
    assert lines[COMMUNICATION] == 2 * 10
    assert lines.total() == 2 * 16
    squares = [to_hex(p.get_facecolor()) for p in axes.patches if isinstance(p, Rectangle)]
    for colour in RANK_COLOURS[:RANKS]:
        assert squares.count(colour) == 3 * 4 + 2, "copies in three rows, and the tokens"
    assert axes.get_title() == "10 of 16 copies travel; 9 meet on one rank"
    told = dispatch_alt(CHOICES, EXPERTS)
    assert "10 of 16 to another rank" in told
    assert "receive 9, 3, 1, 3 copies" in told


def test_the_chosen_experts_are_dark():
    assert chosen_of(SCORES, 2) == [(1, pytest.approx(6 / 11)), (3, pytest.approx(5 / 11))]
    axes = draw_router(new_figure(3.6).add_subplot(), SCORES, 2)
    boxes = Counter(to_hex(patch.get_facecolor()) for patch in axes.patches)
    assert boxes[COMPUTE] == 2
    assert boxes[IDLE] == 6 + 1, "the other experts, and the router"
    words = [text.get_text() for text in axes.texts]
    assert {"× 0.55", "× 0.45"} == {each for each in words if each.startswith("×")}
    assert "belong to expert 1, expert 3; " in router_alt(SCORES, 2)


FLAT = [token for tokens in CHOICES for token in tokens]


def test_loads_by_hand():
    loads = expert_loads(FLAT, EXPERTS, RANKS)
    assert loads[0] == Load(home=1, away=2, dropped=0)
    assert loads[1] == Load(home=2, away=4, dropped=0)
    assert [load.asked for load in loads] == [sum(c) for c in zip(*counts(), strict=True)]
    assert sum(load.away for load in loads) == 10
    assert sum(load.away for load in expert_loads(FLAT, EXPERTS, 1)) == 0


def test_the_first_copies_are_kept():
    loads = expert_loads(FLAT, EXPERTS, RANKS, capacity=2)
    assert [load.kept for load in loads] == [2, 2, 2, 1, 0, 1, 1, 2]
    assert loads[1] == Load(home=2, away=0, dropped=4)
    assert "31 % dropped; 31 % of the places empty" in load_told(loads, RANKS, 2)
    told = load_told(expert_loads(FLAT, EXPERTS, RANKS), RANKS, None)
    assert told.startswith("busiest expert 3.00 × the mean, busiest rank 2.25 ×; 62 % of")
    assert told.endswith("none dropped")


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_bars_are_as_high_as_the_loads(ep):
    loads = expert_loads(FLAT, EXPERTS, ep, capacity=2)
    picture = load_svg(loads, ep, top=6)
    for part, look in (("home", COMPUTE), ("away", COMMUNICATION), ("dropped", IDLE)):
        found = re.findall(rf'y="(\d+)" width="\d+" height="(\d+)" fill="{look}"', picture)
        wanted = [getattr(load, part) * 50 for load in loads if getattr(load, part)]
        assert [int(height) for _, height in found] == wanted
        assert all(int(y) + int(height) <= 300 for y, height in found)
    assert re.findall(r">(\d)</text>", picture) == [str(rank) for rank in range(ep)]


def test_curves_of_imbalance():
    runs = {"alone": [1.5, 3.0, 3.2], "loss": [1.5, 2.0, 1.2]}
    axes = draw_imbalance(new_figure(3.4).add_subplot(), runs, every=5, model="nano-moe")
    assert list(axes.lines[0].get_xdata()) == [2.5, 7.5, 12.5]
    assert list(axes.lines[1].get_ydata()) == runs["loss"]
    assert "nano-moe: 3.2 when left alone, 1.2 with" in axes.get_title()
    assert "left alone: 1.5 at first, 3.2 at the end; auxiliary loss: " in imbalance_alt(runs)
