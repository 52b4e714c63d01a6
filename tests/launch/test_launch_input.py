"""A caller's mistake is refused at once, before a process starts, with the number that is wrong."""

import sys

import pytest
import torch
import torch.distributed as dist

from labkit.launch import run_ranks


def never_runs(group):
    raise AssertionError("no rank must start")


@pytest.mark.parametrize("world_size", [0, -3, 2.0, True, "4"])
def test_a_wrong_world_size_is_refused(world_size):
    with pytest.raises(ValueError, match=rf"world_size must be .*at least 1, got {world_size!r}"):
        run_ranks(never_runs, world_size)


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match="'no function' is not callable"):
        run_ranks("no function", 2)
    with pytest.raises(ValueError, match=r"timeout must be over 0 .*got 0"):
        run_ranks(never_runs, 2, timeout=0)
    with pytest.raises(ValueError, match="got 'tpu'"):
        run_ranks(never_runs, 2, device="tpu")


def test_too_few_gpus_give_both_numbers(monkeypatch, capsys):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="4 ranks over 1 GPU"):
        run_ranks(never_runs, 4, device="cuda")
    assert run_ranks(lambda group: dist.get_backend(group), 2) == ["gloo", "gloo"]
    assert capsys.readouterr().out == "2 ranks over 1 GPU: running on the CPU\n"


def test_windows_is_told_what_to_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="use WSL"):
        run_ranks(never_runs, 2)
