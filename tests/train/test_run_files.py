"""Where a run stands and what is kept of it, with files made by hand."""

import json
from dataclasses import replace

import pytest

from labkit.train.run_files import has_run, last_saved, prune, read_run, write_run
from labkit.train.trainer import TrainSettings

SETTINGS = TrainSettings(steps=9)


def checkpoint(out, step, whole=True):
    folder = out / f"step-{step:08}"
    folder.mkdir()
    (folder / "rank-00000-of-00001.safetensors").write_bytes(b"x")
    if whole:
        told = {"format": 1, "step": step, "model": {}, "plan": {}, "files": {}, "tensors": {}}
        (folder / "manifest.json").write_text(json.dumps(told))
    return folder


def test_the_last_two_are_kept_and_what_was_cut_short_is_not(tmp_path):
    folders = [checkpoint(tmp_path, step, whole=step != 3) for step in (1, 2, 3, 4, 5)]
    prune(tmp_path)
    assert sorted(path for path in tmp_path.iterdir()) == folders[3:]
    assert last_saved(tmp_path) == (5, True)


def test_nothing_to_resume(tmp_path):
    checkpoint(tmp_path, 1, whole=False)
    assert not has_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        last_saved(tmp_path)


def test_losses_go_as_far_as_the_checkpoint(tmp_path):
    write_run(tmp_path, SETTINGS, [3.0, 2.0, 1.0])
    assert read_run(tmp_path, SETTINGS, 2) == [3.0, 2.0]
    with pytest.raises(ValueError, match=r"run.json has 3 losses, the checkpoint 4 steps"):
        read_run(tmp_path, SETTINGS, 4)
    with pytest.raises(ValueError, match="was started with seed=0, now it is 1"):
        read_run(tmp_path, replace(SETTINGS, seed=1), 2)
    other_layout = replace(SETTINGS, num_micro_batches=4, recompute="full")
    assert read_run(tmp_path, other_layout, 3) == [3.0, 2.0, 1.0]


def test_a_run_without_its_settings(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run.json: settings and losses"):
        read_run(tmp_path, SETTINGS, 1)
