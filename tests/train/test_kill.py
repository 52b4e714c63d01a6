"""A rank dies, a save is cut short, the disk is full, files are damaged: nothing saved is lost.

Oracle: a run under the same layout that nobody stopped; under the same layout every loss is equal
bit for bit, under another to 1e-5, which is what fp32 leaves of it. A step that is repeated or left
out moves the loss by 1e-2.
"""

import pytest
import torch

from labkit.model.checkpoint import load_checkpoint
from tests.train.runs import (
    STEPS,
    alive,
    die,
    losses,
    planted,
    steps_saved,
    train,
    write_corpus,
)

LAYOUT = ("--dp", "2", "--zero", "1")
OTHER = ("--pp", "2", "--num-micro-batches", "2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("kill") / "texts")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """A run that nobody stops."""
    out = tmp_path_factory.mktemp("kill") / "whole"
    done = train(out, corpus, *LAYOUT)
    assert done.exit_code == 0, done.output
    return out


def killed(monkeypatch, tmp_path, corpus, step, act=die, rank=1):
    """A run in which something happens; its folder and what it told."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        planted(patch, tmp_path, rank, step, act)
        done = train(out, corpus, *LAYOUT)
    assert done.exit_code == 1, done.output
    assert alive(tmp_path) == []
    return out, done.output


def goes_on(out, corpus, layout=LAYOUT):
    done = train(out, corpus, *layout, "--resume")
    assert done.exit_code == 0, done.output
    assert "2/6 [" in done.output  # where the bar begins
    assert "0/6 [" not in done.output
    return losses(out)


def same_weights(a, b):
    pairs = zip(load_checkpoint(a).parameters(), load_checkpoint(b).parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def test_a_killed_rank_ends_the_run_and_it_resumes_bit_for_bit(
    monkeypatch, tmp_path, corpus, whole
):
    out, told = killed(monkeypatch, tmp_path, corpus, step=4)
    assert "rank 1 of 2 failed first: was killed by SIGKILL" in told
    assert f"the last complete checkpoint is step 2 in {out}; --resume goes on" in told
    assert "Traceback" not in told
    assert goes_on(out, corpus) == losses(whole)
    assert same_weights(out, whole)
    assert steps_saved(out) == [4, STEPS]  # the last two


def test_it_resumes_under_another_layout(monkeypatch, tmp_path, corpus, whole):
    out, _ = killed(monkeypatch, tmp_path, corpus, step=4)
    assert goes_on(out, corpus, OTHER) == pytest.approx(losses(whole), rel=1e-5)


def test_a_kill_between_the_files_of_a_save(monkeypatch, tmp_path, corpus, whole):
    """All shards of step 4 are there, and its manifest is not."""

    def die_before_the_manifest(_):
        from labkit.compose import layout_files

        layout_files.write_manifest = lambda *_, **__: die()

    out, told = killed(monkeypatch, tmp_path, corpus, 4, die_before_the_manifest, rank=0)
    assert "rank 0 of 2 failed first: was killed by SIGKILL" in told
    assert len(list((out / "step-00000004").glob("rank-*"))) == 2
    assert steps_saved(out) == [2]
    assert len(losses(out)) == 4  # more than the checkpoint has steps
    assert goes_on(out, corpus) == losses(whole)


def test_a_kill_inside_a_file(monkeypatch, tmp_path, corpus, whole):
    def die_in_the_file(_):
        from labkit.compose import layout_files

        pending = layout_files.pending
        layout_files.pending = lambda tensors: {
            key: type(each)(dtype=each.dtype, shape=each.shape, make=die)
            for key, each in pending(tensors).items()
        }
        from labkit.compose import parallel_files

        parallel_files.pending = layout_files.pending

    out, _ = killed(monkeypatch, tmp_path, corpus, 4, die_in_the_file)
    left = [path.name for path in (out / "step-00000004").iterdir()]
    assert any(name.startswith(".rank-00001") for name in left)  # the temporary
    assert steps_saved(out) == [2]
    assert goes_on(out, corpus) == losses(whole)
    assert not list(out.glob("step-*/.*"))


def test_a_full_disk_is_named_and_the_old_checkpoint_whole(monkeypatch, tmp_path, corpus, whole):
    def fill_the_disk(_):
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    out, told = killed(monkeypatch, tmp_path, corpus, 4, fill_the_disk)
    assert "OSError" in told
    assert f"{out}/step-00000004/rank-00001-of-00002.safetensors" in told
    assert "the last complete checkpoint is step 2" in told
    assert steps_saved(out) == [2]
    assert not (out / "step-00000004").exists()
    assert goes_on(out, corpus) == losses(whole)


def test_damaged_or_other_checkpoints_are_named(tmp_path, corpus):
    out = tmp_path / "run"
    assert train(out, corpus, *LAYOUT, steps=2).exit_code == 0
    shard = out / "step-00000002" / "rank-00001-of-00002.safetensors"
    there = shard.read_bytes()
    resume = (*LAYOUT, "--resume")
    shard.write_bytes(there[:-8])
    refused(out, corpus, resume, f"{shard} has {len(there) - 8} bytes, the manifest says")
    shard.unlink()
    refused(out, corpus, resume, f"{shard} is missing")
    shard.write_bytes(b"\xff" * len(there))  # the size is right, what is inside is not
    refused(out, corpus, resume, f"{shard} is damaged")
    shard.write_bytes(there)
    other = (*resume, "--model", "mini")
    refused(out, corpus, other, f"{out}/step-00000002 is of another model: ")
    refused(out, corpus, (*resume, "--lr", "1"), "was started with lr=0.004, now it is 1.0")
    refused(out, corpus, LAYOUT, f"{out} holds a run; add --resume")


def refused(out, corpus, arguments, told):
    done = train(out, corpus, *arguments, steps=2)
    assert done.exit_code == 2, done.output
    assert told in done.output
    assert "Traceback" not in done.output
