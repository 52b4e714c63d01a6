"""Checkpoints of a model in training: written under one plan, read or resharded under another.

Promised: weights and AdamW's state to the last bit between all these layouts, each number in one
file only; a run that is killed goes on under any plan with the losses of one process; a save that
is killed, or finds the disk full, leaves the checkpoint before it; what is damaged is refused on
every rank. Oracles: whole_state of the ranks that saved; the run on one process.
"""

import errno
import json
import os
import shutil

import pytest
import torch
from safetensors import safe_open

from labkit.compose.manifest import MANIFEST, latest, read_manifest, step_folder
from labkit.compose.parallel_files import load_parallel, save_parallel
from labkit.compose.plan import Plan
from labkit.compose.reshard import config_of, reshard, slices_of, split_of
from labkit.launch import RankError, run_ranks
from tests.compose.layouts import assert_equal, build, on_ranks
from tests.compose.one_process import ADAMW, serial

M2 = dict(num_micro_batches=2)
PLANS = {
    "tp2 pp2": Plan(tp=2, pp=2, **M2),
    "tp1": Plan(),
    "tp4": Plan(tp=4, sequence_parallel=True),  # two KV heads on four ranks; 259 words, padded
    "pp4": Plan(pp=4, **M2),
    "interleaved": Plan(pp=2, dp=2, schedule="interleaved", chunks=2, zero=1, **M2),
    "zero3 dp2": Plan(dp=2, zero=3),
    "zero3 dp4": Plan(dp=4, zero=3),
    "zero2 tp2": Plan(dp=2, tp=2, zero=2),
}
THERE_AND_BACK = [
    ("tp2 pp2", "tp1"),
    ("tp2 pp2", "tp4"),
    ("tp2 pp2", "pp4"),
    ("zero3 dp2", "zero3 dp4"),
    ("tp4", "interleaved"),
    ("zero2 tp2", "tp1"),
]
TIED = (("tied", True), ("qk_norm", True), ("attention_bias", True))
KINDS = ((), TIED)


def numbers_in(folder):
    """How many numbers of each parameter's weight lie in the files of a folder."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if name.startswith("weight/"):
                    here = file.get_tensor(name).numel()
                    found[name[7:]] = found.get(name[7:], 0) + here
    return found


@pytest.mark.parametrize(("first", "second"), THERE_AND_BACK)
def test_there_and_back(first, second, tmp_path):
    """Read by the other plan, resharded for it, and back: nothing changes in any bit."""
    first, second = PLANS[first], PLANS[second]
    _, _, saved = on_ranks(first, tmp_path / "a", until=2, save_at=[2], resume=False)
    assert_equal(on_ranks(second, tmp_path / "a", until=2)[1], saved)
    reshard(latest(tmp_path / "a"), tmp_path / "b", second)
    reshard(latest(tmp_path / "b"), tmp_path / "c", first)
    _, got, _ = on_ranks(first, tmp_path / "c", until=2)
    assert_equal(got, saved)
    padding = first.tp * -(-259 // first.tp) * 64
    for name, numel in numbers_in(latest(tmp_path / "a")).items():
        whole = saved[name]["weight"].numel()
        assert numel == (padding if "embed" in name or "head" in name else whole), name


def test_a_tied_embedding_is_written_once(tmp_path):
    plan = PLANS["tp2 pp2"]
    _, _, saved = on_ranks(plan, tmp_path, until=1, save_at=[1], resume=False, changes=TIED)
    entry = read_manifest(latest(tmp_path)).entries["embed_tokens.weight"]
    assert len(entry.slices) == 2
    _, got, _ = on_ranks(PLANS["tp4"], tmp_path, until=1, changes=TIED)
    assert_equal(got, saved)


EXPERTS = (("num_experts", 4), ("top_k", 2), ("balancing", True))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Plan(ep=2), Plan(ep=4)),
        (Plan(tp=2, ep=2, zero=1), Plan()),
        (Plan(cp=2, ep=2, zero=3), Plan(pp=2, dp=2)),
    ],
    ids=str,
)
def test_experts_there_and_back(first, second, tmp_path):
    """Experts, routers and their balancing bias, by the numbers of the whole model."""
    how = dict(resume=False, changes=EXPERTS)
    _, _, saved = on_ranks(first, tmp_path / "a", until=2, save_at=[2], **how)
    assert saved["layers.0.mlp.bias"]["weight"].abs().max() > 0
    assert_equal(on_ranks(second, tmp_path / "a", until=2, changes=EXPERTS)[1], saved)
    reshard(latest(tmp_path / "a"), tmp_path / "b", second)
    reshard(latest(tmp_path / "b"), tmp_path / "c", first)
    assert_equal(on_ranks(first, tmp_path / "c", until=2, changes=EXPERTS)[1], saved)


def same_cuts(group, plan, root, changes):
    """The offline rule of how a parameter is cut is that of the stages themselves."""
    parallel = build(plan, dict(changes))
    save_parallel(root, parallel, step=0)
    checkpoint = read_manifest(latest(root))
    config, rank = config_of(checkpoint), group.rank()
    assert config == parallel.config
    for stage in parallel.stages:
        for name, split in stage.layout.items():
            assert split_of(name, checkpoint.entries[name].shape, config, plan.tp) == split
    file = f"rank-{rank:05}-of-{plan.world_size:05}.safetensors"
    mine = {
        (name, cut)
        for name, entry in checkpoint.entries.items()
        for where, cut in entry.slices
        if where == file
    }
    assert set(slices_of(checkpoint, config, plan, rank)) == mine


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        *[
            (plan, how)
            for plan in (Plan(tp=4), Plan(tp=2, pp=2), Plan(dp=2, pp=2))
            for how in KINDS
        ],
        (Plan(ep=2, tp=2), EXPERTS),
        (Plan(cp=2, ep=2), EXPERTS),
    ],
    ids=str,
)
def test_offline_and_on_ranks_the_same_slices(plan, changes, tmp_path):
    run_ranks(same_cuts, plan.world_size, plan, tmp_path, changes)


@pytest.mark.parametrize("second", ["zero2 tp2", "tp2 pp2", "tp1"])
def test_a_killed_run_goes_on(second, tmp_path):
    """Rank 1 dies in the fourth step; the last checkpoint is of the second."""
    first, changes = PLANS["zero2 tp2"], (("num_layers", 4),)
    with pytest.raises(RankError, match="rank 1 of 4"):
        on_ranks(first, tmp_path, until=5, save_at=[2], resume=False, die_at=3)
    losses, _, _ = on_ranks(PLANS[second], tmp_path, until=5)
    assert list(losses) == [2, 3, 4]
    assert list(losses.values()) == pytest.approx(serial(ADAMW, changes, 5)[0][2:], rel=1e-9)


def killed_save(group, plan, root, when):
    """One rank ends when its file, or the manifest, is written and not yet in its place."""
    parallel = build(plan, {})
    load_parallel(root, parallel)
    rank, victim = (1, "rank-00001") if when == "file" else (0, MANIFEST)
    real = os.replace

    def die(old, new):
        if group.rank() == rank and new.name.startswith(victim):
            os._exit(9)
        real(old, new)

    os.replace = die
    save_parallel(root, parallel, step=2)


@pytest.mark.parametrize("when", ["file", "manifest"])
def test_a_kill_during_the_save_loses_nothing(when, tmp_path):
    plan = Plan(dp=2, zero=2)
    _, _, saved = on_ranks(plan, tmp_path, until=1, save_at=[1], resume=False)
    with pytest.raises(RankError):
        run_ranks(killed_save, 2, plan, tmp_path, when)
    assert step_folder(tmp_path, 2).is_dir()
    assert latest(tmp_path) == step_folder(tmp_path, 1)
    names = [path.name for path in step_folder(tmp_path, 2).iterdir()]
    assert MANIFEST not in names
    assert ("rank-00001-of-00002.safetensors" in names) == (when == "manifest")
    _, got, after = on_ranks(plan, tmp_path, until=2, save_at=[2])  # the rest is cleared away
    assert_equal(got, saved)
    assert latest(tmp_path) == step_folder(tmp_path, 2)
    assert not list(tmp_path.rglob(".*"))
    assert_equal(on_ranks(PLANS["tp1"], tmp_path, until=2)[1], after)


def full_disk(group, plan, root):
    """The error of a save for which one rank has no room."""
    parallel = build(plan, {})
    save_parallel(root, parallel, step=1)
    if group.rank() == 1:
        real = os.fsync

        def fail(descriptor):
            real(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device")

        os.fsync = fail
    with pytest.raises(OSError, match=r"rank 1: .*No space left.*rank-00001"):
        save_parallel(root, parallel, step=2)
    return latest(root).name


def test_a_full_disk_is_an_error_on_every_rank(tmp_path):
    assert run_ranks(full_disk, 2, Plan(dp=2, zero=1), tmp_path) == ["step-00000001"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert not list(tmp_path.rglob(".*"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    on_ranks(Plan(tp=2), root, until=1, save_at=[1], resume=False)
    return root


def truncated(folder):
    path = folder / "rank-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def damaged_inside(folder):
    path = folder / "rank-00001-of-00002.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)


def other_format(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))


def pickled(folder):
    path = folder / "rank-00000-of-00002.safetensors"
    size = path.stat().st_size
    torch.save({}, path)
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))


def refused(group, root, message, error, changes, step):
    parallel = build(Plan(dp=2), changes)
    before = [piece.parameter.clone() for piece in parallel.pieces]
    with pytest.raises(error, match=message):
        load_parallel(root, parallel, step=step)
    for piece, kept in zip(parallel.pieces, before, strict=True):
        assert torch.equal(piece.parameter, kept) or "damaged" in message


SECOND = "rank-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("damage", "error", "message", "changes", "step"),
    [
        (truncated, ValueError, rf"{SECOND} has \d+ bytes, the manifest says", {}, None),
        (lambda folder: (folder / SECOND).unlink(), FileNotFoundError, f"{SECOND} is missi", {}, 1),
        (damaged_inside, ValueError, f"{SECOND} is damaged", {}, None),
        (pickled, ValueError, "rank-00000-of-00002.safetensors is damaged", {}, None),
        (other_format, ValueError, "has format 2, this program reads 1", {}, None),
        (lambda folder: (folder / MANIFEST).unlink(), FileNotFoundError, "no complete", {}, None),
        (lambda folder: None, FileNotFoundError, "step-00000009: no complete", {}, 9),
        (
            lambda folder: None,
            ValueError,
            "another model: num_layers is 4 there and 2",
            {"num_layers": 2},
            1,
        ),
        (
            lambda folder: None,
            ValueError,
            "intermediate_size is 176 there and 96",
            {"intermediate_size": 96},
            1,
        ),
    ],
)
def test_refused_on_every_rank(damage, error, message, changes, step, written, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(written, root)
    damage(step_folder(root, 1))
    run_ranks(refused, 2, root, message, error, changes, step)


def test_a_complete_checkpoint_is_not_written_over(written, tmp_path):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ValueError, match="is a complete checkpoint"):
        reshard(latest(written), tmp_path, Plan(pp=2))
