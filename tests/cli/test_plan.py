"""python -m labkit plan: a table of predictions; exit code 0, 1 for a result that is none, 2.

Oracle: labkit.cost.planner for the numbers; the words by hand.
"""

import json

import pytest
from click.testing import CliRunner

from labkit.cli import main, plan
from labkit.cost.architecture import architecture
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.cost.planner import USABLE
from labkit.cost.planner import plan as ranked

QUESTION = dict(model="llama3-8b", gpus=16, gpu="h100", sequence="8192", batch_tokens="262144")


def run(*flags, **changed):
    options = QUESTION | changed
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items()]
    return CliRunner().invoke(main, ["plan", *(word for pair in pairs for word in pair), *flags])


def ranking(num_devices=16, batch_tokens=262144):
    cluster = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))
    question = dict(num_devices=num_devices, seq_len=8192, batch_tokens=batch_tokens)
    return ranked(architecture("llama3-8b"), cluster=cluster, **question)


def test_the_table_is_the_rankings():
    done = run("--top", "3")
    assert done.exit_code == 0, done.output
    found = ranking()
    lines = done.output.splitlines()
    assert lines[1] == "a step: 32 sequences of 8,192 = 262,144 tokens"
    assert lines[2] == "memory: a layout may fill 72.0 of 80.0 GB; layers are the course's own"
    assert lines[4].startswith("predicted, the fastest first (efficiency fitted on ")
    assert lines[5].split()[:3] == ["dp", "pp", "tp"]
    assert lines[9] == ""  # three rows
    for line, each in zip(lines[6:9], found.fitting, strict=False):
        cells, layout = line.split(), each.layout
        assert cells[1:7] == [
            *map(str, (layout.dp, layout.pp, layout.tp, layout.cp, layout.ep, layout.zero))
        ]
        assert cells[12:14] == [f"{each.needed_bytes / 1e9:.1f}", f"{each.step.total_s:.3f}"]
    fit, large = f"{found.num_fitting:,} fit", f"{found.num_too_large:,} are too large"
    assert lines[10] == f"{found.num_layouts:,} layouts: {fit}, {large}"
    assert "too large, most of it" in done.output
    assert "ep=2 for a model of 0 experts" in done.output


def test_json_has_the_same_numbers_and_says_what_is_predicted():
    done = run("--json", "--top", "2")
    data, found = json.loads(done.output), ranking()
    assert done.exit_code == 0
    assert len(data["fastest"]) == len(data["nearest_misses"]) == 2
    best = data["fastest"][0]
    assert best["predicted_step"]["total_s"] == found.best.step.total_s
    assert best["layout"]["dp"] == found.best.layout.dp
    assert sum(best["parts_bytes"].values()) == best["needed_bytes"]
    assert data["nearest_misses"][0]["reason"].startswith("needs ")
    assert data["num_layouts"] == data["num_fitting"] + data["num_too_large"]
    assert sum(data["largest_part_of_what_does_not_fit"].values()) == data["num_too_large"]


def test_what_is_left_of_the_batch_and_a_better_one_are_told():
    done = run(batch_tokens="1e5")
    assert "12 sequences of 8,192 = 98,304 tokens; 1,696 of 100,000 are left out" in done.output
    assert (
        "12 sequences divide over at most 4 of 16 devices; "
        "16 sequences (--batch-tokens 131072) over 8" in done.output
    )
    assert "divide over at most" not in run().output


def test_nothing_fits_is_a_result():
    done = run("--top", "2", model="llama3-405b")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[4].startswith("nothing fits. The nearest of ")
    needed, missing = map(float, lines[6].split()[12:14])
    assert missing == pytest.approx(needed - 72.0)
    assert "optimizer state" in lines[6]
    data = run("--json", model="llama3-405b")
    assert (data.exit_code, json.loads(data.output)["fastest"]) == (1, [])


def test_a_device_without_a_published_run_is_called_a_guess():
    assert "(efficiency for b200 a guess from others):" in run(gpu="b200").output


def test_the_share_and_the_links_are_the_callers():
    assert plan.USABLE == USABLE  # written twice, so that --help needs no planner
    assert "may fill 40.0 of 80.0 GB" in run(budget="0.5").output
    slow = json.loads(run("--json", inter="ethernet-25g").output)
    fast = json.loads(run("--json").output)
    seconds = [each["fastest"][0]["predicted_step"]["total_s"] for each in (slow, fast)]
    assert seconds[0] > seconds[1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (dict(model="llama9"), "no model 'llama9'; known are"),
        (dict(gpu="h900"), "no device 'h900'; known are"),
        (dict(inter="string"), "no link 'string'; known are"),
        (dict(batch_tokens="4 furlongs"), "unit 'furlongs' in '4 furlongs' is not known"),
        (dict(sequence="0.5"), "--sequence 0.5 is not a whole number of tokens"),
        (dict(batch_tokens="8000"), "batch of 8000 tokens is less than one sequence of 8192"),
        (dict(gpus="12"), "12 devices do not fill nodes of 8"),
        (dict(gpus="0"), "0 devices and 8192 tokens a sequence"),
        (dict(gpus_per_node="0"), "--gpus-per-node is 0"),
        (dict(budget="2"), "usable share of memory is 2.0"),
        (dict(gpus="37", gpus_per_node="1"), "no layout of 37 devices divides"),
        (dict(model="deepseek-v3"), "a latent of 576 numbers"),
    ],
)
def test_a_mistake_is_one_line(changed, told):
    done = run(**changed)
    assert done.exit_code == 2, done.output
    assert len(done.output.splitlines()) == 1
    assert done.output.startswith(f"Error: {told}")
