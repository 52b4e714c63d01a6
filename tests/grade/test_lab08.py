"""Lab 08: what the bank of wrong solutions cannot show about its checks.

Promised: groups are those of the library's mesh; the serial step clips as PyTorch does; mistakes in
the norm are told apart; the hunted bug has the right numbers; a job's prices are the planner's;
shards are cut as the library cuts them, and reads are counted; brute force finds the best interval
of the exact expectation; no answer is longer than its text says. Oracle: Mesh on eight ranks,
torch.nn.utils, the planner, tensor_parallel's layout, Daly's complete model, the files.
"""

import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from labkit.comm.mesh import Mesh
from labkit.compose.tensor_parallel import shard_state, tensor_parallel
from labkit.cost.candidates import Job as PlannersJob
from labkit.cost.goodput import FailureCosts, expected_goodput
from labkit.cost.planner import answer
from labkit.grade.bank import read_bank
from labkit.grade.catalogue import entries
from labkit.grade.check import CheckFailed
from labkit.grade.lab08 import EXERCISES
from labkit.grade.lab08_interval import CASES as INTERVALS
from labkit.grade.lab08_interval import brute_force_s, world_s
from labkit.grade.lab08_mesh import CASES as MESHES
from labkit.grade.lab08_mesh import CUBE, groups_of
from labkit.grade.lab08_planner import SEEDS, fitting, priced, random_job
from labkit.grade.lab08_reshard import CASES as LAYOUTS
from labkit.grade.lab08_reshard import CONFIG, greedy, run_load_rank, saved, state, whole
from labkit.grade.lab08_serial import gradient_of, norm_cause, serial
from labkit.grade.lab08_step import WORLDS, _Judge
from labkit.grade.lab08_step_ranks import RATE, run_steps
from labkit.launch import run_ranks

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab08_hybrid.md"
MOST_LINES = {"train_step": 20, "suspect": 30, "best_layout": 20, "load_rank": 20}
ALL_CASES = [case for cases in WORLDS for case in cases]


def bug():
    """The function that is handed out in the bug hunt."""
    found = next(
        solution
        for solution in read_bank(ROOT / "tests" / "mutants")
        if (solution.exercise, solution.name) == ("lab08.suspect", "as_it_was")
    )
    names = {}
    exec(found.text, names)
    return names["suspect"]


def lines_of_the_mesh(group):
    mesh = Mesh(dp=2, pp=2, tp=2, joint=[("dp", "ep"), ("pp", "tp")])
    asked = [("dp",), ("pp",), ("ep",), ("tp",), ("dp", "ep"), ("pp", "tp")]
    return {axes: list(mesh.ranks(*axes)) for axes in asked}


def test_groups_are_those_of_the_mesh():
    by_rank = run_ranks(lines_of_the_mesh, 8)
    for axes in by_rank[0]:
        groups = groups_of(CUBE, axes)
        for rank, lines in enumerate(by_rank):
            assert lines[axes] in groups
            assert rank in lines[axes]


def test_meshes_tell_the_usual_mistakes_apart():
    sizes, axes = MESHES[0]
    transposed = {axis: sizes[axis] for axis in reversed(list(sizes))}
    assert groups_of(sizes, axes) != groups_of(transposed, axes)
    assert {len(axes) for _, axes in MESHES} == {1, 2, 4}
    assert any(1 in sizes.values() for sizes, _ in MESHES)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_serial_step_is_pytorchs(case):
    model = case.model()
    tokens, targets = case.batch(0)
    cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
    losses, norms, after = serial(case, 1e-6)
    assert norms[0] == pytest.approx(norm.item(), rel=1e-12)
    assert len(losses) == case.num_steps
    if case.num_steps == 1:
        for name, parameter in model.named_parameters():
            expected = before[name] - RATE * parameter.grad
            torch.testing.assert_close(after[name], expected, atol=1e-12, rtol=0)


def test_the_cases_cover_what_the_lab_promises():
    assert {case.world_size for case in ALL_CASES} == {1, 2, 8}
    assert {(2, 2, 2)} <= {(case.dp, case.pp, case.tp) for case in ALL_CASES}
    assert any(case.clip_norm > serial(case)[1][0] for case in ALL_CASES)
    assert any(case.clip_norm < serial(case)[1][0] for case in ALL_CASES)
    first = WORLDS[0][0]
    assert first.num_steps > 1, "what is left over from a step is seen in the first world"
    for case in ALL_CASES:
        tokens, _ = case.batch(0)
        assert len({tuple(row) for row in tokens.tolist()}) == case.rows


def test_a_replica_alone_has_another_gradient():
    """A step that never syncs is far outside of the tolerance."""
    case = WORLDS[0][0]
    own, whole_batch = gradient_of(case, (0, 1)), gradient_of(case)
    apart = max(float((own[name] - whole_batch[name]).abs().max()) for name in own)
    assert apart > 1e-3


def test_mistakes_in_the_norm_are_told_apart():
    case = next(case for case in ALL_CASES if case.world_size == 8)
    names = list(gradient_of(case))
    whole_ones = [name for name in names if "norm" in name]
    middle = {name for name in names if name.startswith(("layers.0", "layers.1", "embed"))}

    def seen(rank):
        dp, pp, tp = rank // 4, rank // 2 % 2, rank % 2
        own = [name for name in names if (name in middle) == (pp == 0)]
        runs = [{"rows": [list(range(4 * dp, 4 * dp + 4))]}]
        return {
            "place": (dp, pp, tp),
            "weights": dict.fromkeys(own),
            "cut": [name for name in own if name not in whole_ones],
            "steps": [{"runs": runs}],
        }

    by_rank = [seen(rank) for rank in range(8)]
    norm = serial(case)[1][0]
    told = [norm_cause(case, by_rank, 0, norm * factor) for factor in (2, math.sqrt(2), norm)]
    assert told == ["norm_sum", "norm_dp", "norm_squared"]
    gains = sum(float(gradient_of(case)[name].square().sum()) for name in whole_ones)
    assert norm_cause(case, by_rank, 0, math.sqrt(norm**2 + gains)) == "norm_tp"
    assert norm_cause(case, by_rank, 0, math.sqrt(norm**2 - gains)) == "norm_left_out"
    assert gains / norm**2 > 1e-7, "counted twice, the gains are 100 times the tolerance"


def test_the_hunted_bug_has_the_right_numbers():
    """Only its messages are wrong: without that promise it passes."""
    case = WORLDS[0][0]
    judge = _Judge(
        "lab08.suspect", case, [one[0] for one in run_ranks(run_steps, 2, bug(), [case])]
    )
    judge._sync()
    judge._norm()
    judge._update()
    judge._loss()
    judge._after()
    with pytest.raises(CheckFailed) as failed:
        judge.judge()
    assert failed.value.key == "lab08.suspect.early"
    got, expected = (failed.value.values[name] for name in ("got", "expected"))
    assert got // expected == case.num_micro_batches


@pytest.mark.parametrize("seed", [0, 3, 9])
def test_prices_are_the_planners(seed):
    job = random_job(seed)
    asked = PlannersJob(
        architecture=job.architecture, seq_len=job.seq_len, batch_size=job.batch_size
    )
    for sizes in list(priced(job))[::7]:
        told = answer(asked, job._layout(*sizes), cluster=job.cluster)
        assert told.needed_bytes == job.memory_bytes(*sizes)
        assert told.feasible == (sizes in fitting(job))
        if told.step is not None:
            assert told.step.total_s == job.step_s(*sizes)


def test_random_clusters_differ_in_what_is_best():
    jobs = [random_job(seed) for seed in SEEDS]
    found = [fitting(job) for job in jobs]
    assert any(not fits for fits in found), "on one of them nothing fits"
    best = [min(fits, key=lambda sizes: fits[sizes][0]) for fits in found if fits]
    assert {pp > 1 for _, pp, *_ in best} == {True, False}
    assert {dp > 1 for dp, *_ in best} == {True, False}
    assert any(len(priced(job)) > len(fits) > 1 for job, fits in zip(jobs, found, strict=True))


def layouts(group):
    model = tensor_parallel(whole(), group)
    return [shard_state(state(), model.layout(), rank, 4) for rank in range(4)]


def test_shards_are_cut_as_the_library_cuts_them():
    of_library = run_ranks(layouts, 4)[0]
    files = saved((1, 4))
    for rank, shard in enumerate(of_library):
        for name, expected in shard.items():
            assert torch.equal(files.read(0, rank, name), expected)


def test_reads_are_copies_and_counted():
    files = saved((2, 2))
    files.reads.clear()
    part = files.read(0, 1, "embed_tokens.weight", 1, 3)
    assert files.reads == [(0, 1, "embed_tokens.weight", part.numel())]
    part.zero_()
    assert files.read(0, 1, "embed_tokens.weight", 1, 3).any()
    with pytest.raises(ValueError, match=r"pp=1, tp=1 of 2 x 2 did not save embed_tokens\.weight"):
        files.read(1, 1, "embed_tokens.weight")
    with pytest.raises(ValueError, match="has 7 on dim 0 there, not 3 to 9"):
        files.read(0, 0, "embed_tokens.weight", 3, 9)


def test_the_model_of_the_reshard_has_edges():
    assert CONFIG.num_layers % 2
    assert CONFIG.num_layers % 3
    assert CONFIG.vocab_size % 2
    assert CONFIG.num_kv_heads < 4
    assert {new for _, new in LAYOUTS} >= {(1, 1), (1, 4), (4, 1)}
    assert len(set(greedy())) > 3, "a text of one word would show nothing"


def test_names_of_all_ranks_are_the_models():
    rows = run_load_rank(None, lambda *where: {"where": torch.tensor(where[1:])}, LAYOUTS[:2])
    assert [row["tensors"]["where"].tolist() for row in rows] == [
        [1, 1, 0, 0],
        *([1, 4, 0, rank] for rank in range(4)),
    ]
    assert all(row["reads"] == [] for row in rows)


@pytest.mark.parametrize("case", INTERVALS, ids=lambda case: f"{case[0]} devices")
def test_brute_force_finds_the_best_interval(case):
    """Within 3 %: an answer by the exact expectation is well inside of the 5 % that are allowed."""
    _, _, save_s, restart_s = case
    between_s = world_s(case)
    costs = FailureCosts(between_failures_s=between_s, save_s=save_s, restart_s=restart_s)
    grid = [between_s * 0.005 * 1.002**step for step in range(3000)]
    best = max(grid, key=lambda tau: expected_goodput(costs, tau))
    assert brute_force_s(case) == pytest.approx(best, rel=0.03)


def test_a_share_of_the_time_between_failures_cannot_be_right_everywhere():
    shares = [brute_force_s(case) / world_s(case) for case in INTERVALS]
    assert max(shares) / min(shares) > 2


def test_a_part_says_what_it_cannot_run():
    from labkit.grade.lab08_part import _check

    one, two = torch.zeros(2, 3), torch.zeros(1, 3)
    with pytest.raises(ValueError, match="inputs are a list of micro-batches, got a Tensor"):
        _check(one, [one])
    with pytest.raises(ValueError, match="2 micro-batches of inputs, 1 of targets"):
        _check([one, one], [one])
    with pytest.raises(ValueError, match=r"\(1, 3\), \(2, 3\)"):
        _check([one, two], [one, two])


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    text = "\n".join(path.read_text() for path in (ROOT / "labkit" / "grade").glob("lab08*.py"))
    step = set(re.findall(r'self\.fail\(\s*"(\w+)"', text)) | set(
        re.findall(r'"(norm_\w+)": ', text)
    )
    step |= {"norm", "no_sync", "gradient", "unclipped", "raised", "factor", "loss", "loss_zero"}
    keys = [f"{exercise}.{key}" for exercise in ("train_step", "suspect") for key in step]
    for exercise in ("mesh_groups", "best_layout", "load_rank", "checkpoint_interval"):
        wrong = [s.expect for s in read_bank(ROOT / "tests" / "mutants")]
        keys += [key[6:] for key in wrong if key.startswith(f"lab08.{exercise}.")]
    assert len(step) > 25
    assert {f"lab08.{key}" for key in keys} <= set(entries("lab08"))


def test_no_answer_is_longer_than_its_text_says():
    cells = re.findall(
        r"^:exercise: lab08\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {f"lab08.{name}" for name, _ in cells} == {exercise.id for exercise in EXERCISES}
    for name, text in cells:
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= MOST_LINES.get(name, 15), f"{name}: {own} lines"
