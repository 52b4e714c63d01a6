"""The report tells what the runs hold, and says what it cannot know.

Oracle: the runs' own numbers, read back from the text.
"""

import pytest

from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.measure.ledger import CommLedger
from labkit.simulate.holding import CATEGORIES, Holding
from labkit.simulate.replay import fabric_of, replay_runs
from labkit.simulate.report import (
    NOT_SEEN,
    memory_table,
    report,
    traffic_table,
    why_it_does_not_fit,
)
from labkit.simulate.run import RankRun, simulate

from .plans import job

CLUSTER = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))


def run_with(**gigabytes):
    sizes = dict.fromkeys(CATEGORIES, 0) | {k: round(v * 1e9) for k, v in gigabytes.items()}
    moment = Holding(phase="backward", by_category=sizes)
    return RankRun(
        rank=3, ledger=CommLedger(), events=[], held=moment, peak=moment, most_kept_bytes=0
    )


def test_a_report_has_every_stage_time_and_what_is_not_seen():
    it = job("pp x tp")
    runs = simulate(it)
    text = report(it, runs, replay_runs(runs, fabric_of(CLUSTER, "bf16")), CLUSTER)
    for expected in ("4 ranks: dp 1, pp 2, tp 2, ZeRO 0", "Stage 0, as rank 0", "Virtual step"):
        assert expected in text
    assert "Stage 1, as rank 2" in text
    assert text.endswith(NOT_SEEN)


def test_memory_is_told_in_gigabytes_by_category():
    text = memory_table(run_with(parameters=15.096, optimizer=90.5754))
    assert text.splitlines()[1].split() == ["parameters", "15.096", "15.096"]
    assert text.splitlines()[-1].split() == ["all", "105.671", "105.671"]


def test_traffic_counts_an_exchange_with_all_others_once():
    [run] = simulate(job("ZeRO 3"))
    rows = {tuple(line.split()[:2]): line.split() for line in traffic_lines(run)}
    units = 4 + 1
    assert rows["dp", "send"][2:5] == ["4", str(3 * units * 2), str(3 * units * 2 * 3)]
    assert traffic_table(CommLedger()).startswith("Nothing is sent")


def traffic_lines(run):
    return traffic_table(run.ledger).splitlines()[1:]


def test_a_rank_that_does_not_fit_says_by_how_much_and_what_is_largest():
    assert why_it_does_not_fit([run_with(parameters=79)], CLUSTER) is None
    why = why_it_does_not_fit(
        [run_with(parameters=1), run_with(optimizer=90, gradients=15)], CLUSTER
    )
    assert why == (
        "rank 3 needs 105.0 GB, h100 has 80.0 GB: 25.0 GB too much. "
        "Largest is optimizer with 90.0 GB"
    )


@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_utilization_is_below_one(precision):
    it = job("one rank", precision)
    runs = simulate(it)
    number_format = {"mixed": "bf16", "fp32": "fp32"}[precision]
    text = report(it, runs, replay_runs(runs, fabric_of(CLUSTER, number_format)), CLUSTER)
    assert 0 < float(text.split("MFU ")[1].split("%")[0]) < 100
