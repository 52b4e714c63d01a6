"""Lab 03, DDP, bug hunt and int8: what the bank of wrong solutions cannot show about their checks.

Promised: the bucket size tells one call a tensor from one call for all; ranks start from different
tensors; the oracle is the gradient of the whole batch, and faults are far above its tolerance; the
order of events is read as told; wrong results get the cause that they have; the fault of the
bug hunt is invisible on even data; a dropped residual is far from passing, a kept one is not.
Oracle: hand-made values, one process.
"""

from math import ceil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather, all_reduce
from labkit.grade import lab03_compressed as compressed
from labkit.grade import lab03_suspect as hunt
from labkit.grade.catalogue import entries
from labkit.grade.check import CheckFailed
from labkit.grade.lab03_ddp import (
    ALONE,
    BUCKET,
    CLOSE,
    GROUPS,
    PLAIN,
    UNUSED,
    _cause,
    _judge_messages,
    _judge_order,
    _judge_protocol,
    _serial,
    can_fill,
)
from labkit.grade.lab03_ddp_ranks import Network, loss_of, trained, words_of
from labkit.grade.notebook import PRISTINE, read_notebook
from labkit.grade.release import without_docstring
from labkit.launch import run_ranks

BUG = Path(__file__).parents[1] / "mutants" / "lab03" / "suspect" / "as_it_was.py"
WHERE = {"rank": 0, "step": 1, "case": PLAIN[0]}


def test_the_bucket_size_tells_the_two_extremes():
    sizes = [p.nbytes for p in trained(Network(seed=1))]
    assert 2 * ceil(sum(sizes) / BUCKET) + 1 < len(sizes), "one call a tensor would pass"
    assert ceil(sum(sizes) / (BUCKET + max(sizes))) > 1, "one call for all would pass"


def test_the_cases_cover_what_the_lab_promises():
    cases = (*PLAIN, *UNUSED, *GROUPS, *ALONE)
    assert {len(case.members) for case in cases} == {1, 2, 4}
    assert any(case.members[0] != 0 for case in cases)
    used = {users for case in UNUSED for step in case.branches for users in step}
    assert used == {(0,), (), (0, 1), (1,)}


def test_ranks_start_from_different_tensors():
    ours, theirs = Network(seed=1), Network(seed=2)
    for name, tensor in ours.state_dict().items():
        assert not torch.equal(tensor, theirs.state_dict()[name]), name
    assert ours.head.weight is ours.embedding.weight
    assert len(trained(ours)) < len(list(ours.parameters()))


def test_the_oracle_is_the_gradient_of_the_whole_batch():
    network = Network(seed=1)
    words = torch.cat([words_of(0, 0, place) for place in (0, 1)])
    loss_of(network, words, True).backward()
    for parameter, mean in zip(trained(network), next(_serial(PLAIN[0])).mean, strict=True):
        torch.testing.assert_close(mean, parameter.grad, rtol=0, atol=CLOSE)


def test_faults_are_a_hundred_times_larger_than_the_tolerance():
    for case in (PLAIN[0], PLAIN[1], UNUSED[0], *GROUPS):
        for step in _serial(case):
            for mean, local in zip(step.mean, step.local[-1], strict=True):
                if mean.any():
                    assert mean.abs().max() > 100 * CLOSE
                    assert (local - mean).abs().max() > 100 * CLOSE


def test_accumulated_gradients_are_those_of_all_micro_batches():
    """The branch is used in the first of three alone, and its gradient is there."""
    step = next(_serial(UNUSED[1]))
    branch = step.names.index("branch.weight")
    assert step.local[0][branch].any()
    assert not step.local[1][branch].any()


@pytest.mark.parametrize(
    ("cause", "case", "factor", "own"),
    [
        ("local", PLAIN[0], 0, 1),
        ("sum", PLAIN[0], 2, 0),
        ("divided", PLAIN[0], 0.5, 0),
        ("nothing", PLAIN[0], 0, 0),
        ("world", GROUPS[1], 0.5, 0),
        ("values", PLAIN[0], 1.5, 0),
    ],
)
def test_a_wrong_gradient_has_its_cause(cause, case, factor, own):
    expected, local = torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 5.0]).double()
    assert _cause(case, factor * expected + own * local, expected, local) == cause


@pytest.mark.parametrize(
    ("payloads", "sizes", "fits"),
    [
        ([5, 3], [3, 5], True),
        ([8], [3, 5], True),
        ([4, 4], [3, 5], False),
        ([6, 6], [4, 3, 3, 2], True),
        ([7, 5], [4, 4, 4], False),
        ([5, 3, 3], [3, 5], False),
        ([], [], True),
    ],
)
def test_messages_of_whole_parameters(payloads, sizes, fits):
    assert can_fill(payloads, sizes) == fits


def events(names):
    return [(name, 0) for name in names.split(", ")]


LAST = "gradient, all_reduce, first layer, gradient, "


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ("last, " + LAST + "all_reduce, backward returned, wait, wait", ""),
        ("last, " + LAST + "all_reduce, wait, wait, backward returned", ""),
        ("last, gradient, all_reduce, wait, first layer, gradient, all_reduce, wait", "waits"),
        ("last, gradient, first layer, all_reduce, gradient, all_reduce, wait, wait", "late"),
        ("last, gradient, first layer, gradient, backward returned, all_reduce, wait", "late"),
        ("silent, all_reduce, wait, first layer, last, gradient, first layer, gradient", "late"),
    ],
)
def test_the_order_of_events(names, key):
    if not key:
        _judge_order(PLAIN[0], events(names), WHERE)
        return
    with pytest.raises(CheckFailed) as failure:
        _judge_order(PLAIN[0], events(names), WHERE)
    assert failure.value.key == f"lab03.ddp.{key}"


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ("silent, gradient, all_reduce, last, wait, finished", "silence"),
        ("last, all_reduce, finished", "unwaited"),
        ("last, all_reduce, finished, wait", "unwaited"),
    ],
)
def test_calls_at_the_wrong_time(names, key):
    with pytest.raises(CheckFailed) as failure:
        _judge_protocol({"happened": events(names)}, WHERE)
    assert failure.value.key == f"lab03.ddp.{key}"


def test_a_message_for_all_and_one_a_parameter_are_refused():
    sizes = [p.nbytes for p in trained(Network(seed=1))]
    for payloads in ([sum(sizes)], sizes):
        with pytest.raises(CheckFailed) as failure:
            _judge_messages(PLAIN[0], [("all_reduce", count) for count in payloads], WHERE)
        assert failure.value.key == "lab03.ddp.messages"


def test_the_fault_of_the_bug_hunt_does_not_show_on_even_data():
    for amounts in hunt.CASES[2]:
        found = hunt.results(amounts, 1)
        apart = max(
            float((a - b).abs().max())
            for a, b in zip(found["values"], found["of_means"], strict=True)
        )
        even = len({count for row in amounts for count in row}) == 1
        assert apart < hunt.CLOSE if even else apart > 100 * hunt.CLOSE


def test_wrong_means_of_the_first_case_are_all_different():
    found = hunt.results(hunt.CASES[2][0], 1)
    flat = {name: torch.cat([g.flatten() for g in parts]) for name, parts in found.items()}
    for name, gradient in flat.items():
        close = [other for other, g in flat.items() if torch.allclose(g, gradient, rtol=1e-6)]
        assert close == [name]


def test_the_numbers_of_the_int8_cases_are_exact_and_no_code_is_halfway():
    for case in (case for cases in compressed.CASES.values() for case in cases):
        for place in set(range(len(case.members))) - set(case.zeros):
            gradient, residual = compressed.draw(case, place)
            wanted = gradient + residual
            scale = wanted.abs().max() / 127
            steps = wanted / scale
            assert float(torch.log2(scale)) == -(5 + place)
            assert ((steps - steps.round()).abs() <= 0.25).all()
            sent = compressed.dequantised(wanted)
            _, likely = compressed.results([compressed.draw(case, p) for p in range(3)], place)
            assert torch.equal(sent + likely["values"], wanted)
            assert residual.any()


def steps_of(keep):
    """The whole exercise in few lines, with the residual kept or dropped."""

    def compressed_mean(gradient, residual, group):
        sent = compressed.dequantised(gradient + residual)
        mean = all_reduce(sent, group) / dist.get_world_size(group)
        return mean, keep * (gradient + residual - sent)

    return compressed_mean


@pytest.mark.parametrize("keep", [True, False])
def test_only_a_kept_residual_comes_close_to_float32(keep):
    """Measured: 0.7 times the loss of float32 with it, 240 times without it."""
    alone = compressed.loss(compressed.train_alone(2))
    for weights in run_ranks(compressed.train, 2, steps_of(keep)):
        ratio = compressed.loss(weights) / alone
        assert ratio < 1.2 if keep else ratio > 20 * compressed.MARGIN


def plain_mean(gradient, residual, group):
    return all_gather(gradient, group).view(2, -1).mean(0), residual


def test_the_loss_without_rounding_is_that_of_the_ranks():
    alone = compressed.train_alone(2)
    for weights in run_ranks(compressed.train, 2, plain_mean):
        torch.testing.assert_close(weights, alone, rtol=1e-4, atol=1e-5)


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    ddp = "start buffers local sum divided nothing world values frozen tied bytes"
    case = compressed.CASES[2][0]
    drawn = [compressed.draw(case, place) for place in (0, 1)]
    means, residuals = compressed.results(drawn, 0)
    keys = [f"ddp.{name}" for name in ddp.split()]
    keys += [f"suspect.{name}" for name in (*hunt.results(hunt.CASES[2][0], 0), "nan")]
    keys += [f"compressed.mean_{name}" for name in (*means, "nan")]
    keys += [f"compressed.residual_{name}" for name in (*residuals, "nan")]
    assert {f"lab03.{key}" for key in keys} <= set(entries("lab03"))


def test_the_bug_hunt_shows_the_banks_text():
    cells = read_notebook(PRISTINE / "lab03_data_parallel.ipynb").cells
    (cell,) = [c for c in cells if c.metadata.get("exercise") == "lab03.suspect"]
    assert cell.source == without_docstring(BUG)
