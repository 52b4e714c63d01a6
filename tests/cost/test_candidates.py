"""The search space: splits of a number by hand, and which of two layouts is no slower by step_time.

`as_quick` lets the planner leave layouts unpriced, so what it claims is held against the price of
both, on clusters with fast and slow links.
"""

from dataclasses import replace
from itertools import product

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.candidates import (
    Job,
    as_quick,
    axes_refusal,
    divisors,
    kept_choices,
    schedules,
    why_not,
    worlds,
    zero_choices,
)
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.cost.layout import RECOMPUTE, Layout
from labkit.cost.step_time import step_time

SETTINGS = list(product((False, True), RECOMPUTE, range(4)))  # what a rank keeps


def kept(layout, setting):
    split, recompute, zero = setting
    return replace(layout, sequence_parallel=split, recompute=recompute, zero=zero)


def test_divisors_grow_and_are_all():
    assert divisors(1) == [1]
    assert divisors(16) == [1, 2, 4, 8, 16]
    assert divisors(60) == [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]


@pytest.mark.parametrize(("num_devices", "count"), [(1, 1), (7, 5), (8, 35), (12, 75)])
def test_every_split_of_a_number_stands_once(num_devices, count):
    """A prime to the k over five axes: k + 4 over 4 ways."""
    found = list(worlds(num_devices))
    assert len(found) == len(set(found)) == count
    assert all(each.world_size == num_devices for each in found)


@pytest.mark.parametrize("inter", ["infiniband-ndr", "ethernet-1g"])
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "nano"])
def test_as_quick_is_never_slower(name, inter):
    cluster = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link(inter))
    model, ep = architecture(name), 2 if name == "mixtral-8x7b" else 1
    for b, m, pp, cp in ((1, 1, 1, 1), (2, 4, 1, 2), (1, 8, 4, 1)):
        sizes = dict(dp=8, tp=2, ep=ep, pp=pp, cp=cp)
        layout = Layout(**sizes, micro_batch_size=b, num_micro_batches=m)
        layouts = [kept(layout, setting) for setting in SETTINGS]
        seconds = {each: step_time(model, each, cluster, 512).total_s for each in layouts}
        pairs = [(a, c) for a, c in product(layouts, layouts) if as_quick(a, c)]
        assert len(pairs) > len(layouts)
        for one, other in pairs:  # sums in another order may differ in their last bits
            assert seconds[one] <= seconds[other] * (1 + 1e-12)


def test_as_quick_claims_no_more():
    layout = Layout(dp=8, tp=2)
    best = kept(layout, (True, "none", 1))
    assert as_quick(best, best)
    for setting in SETTINGS:
        assert as_quick(best, kept(layout, setting)) == (setting[2] != 0)
        assert as_quick(kept(layout, setting), best) == (setting == (True, "none", 1))


def test_blocks_hold_what_divides_and_nothing_else():
    job = Job(architecture=architecture("nano"), seq_len=16, batch_size=4)
    found = [
        kept(replace(axes, micro_batch_size=b, num_micro_batches=m, chunks=v), (*choice, zero))
        for axes in worlds(4)
        if axes_refusal(job, axes) is None
        for b, m, v in schedules(job, axes)
        for choice in kept_choices(job, axes)
        for zero in zero_choices(axes)
    ]
    assert len(found) == len(set(found)) > 100
    assert [why_not(job, each) for each in found] == [None] * len(found)
