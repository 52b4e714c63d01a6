"""What run_ranks promises when something goes wrong: the first cause, an end, no orphan.

The oracle is what the test itself planted: the rank, the line and the way it fails.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.launch import RankError, RankTimeout, run_ranks

FATES = {
    "exit code 7": lambda: os._exit(7),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGABRT": os.abort,
    "exit code 3": lambda: sys.exit(3),
    "exit code 0": lambda: sys.exit(),
}


def alive(pid):
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def gone(pids, seconds):
    """Whether all processes end within so many seconds."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_the_first_cause_is_told_with_the_users_line():
    def fails_on_one(group):
        if dist.get_rank(group) == 1:
            raise ValueError("rank one is unhappy")
        dist.barrier(group=group)

    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 failed first: ValueError: rank one") as caught:
        run_ranks(fails_on_one, 2)
    assert time.monotonic() - start < 5
    assert caught.value.rank == 1
    assert 'raise ValueError("rank one is unhappy")' in caught.value.traceback
    assert "labkit" not in caught.value.traceback.partition("ValueError")[0].replace(__file__, "")


def test_the_echo_of_a_lost_peer_is_not_the_cause():
    def rank_two_leaves(group):
        if dist.get_rank(group) == 2:
            os._exit(5)
        dist.barrier(group=group)

    for _ in range(3):
        with pytest.raises(RankError, match=r"rank 2 of 4 failed first: .*exit code 5"):
            run_ranks(rank_two_leaves, 4)


@pytest.mark.parametrize("echo", ["Pair is not connected (6)", "Connection closed by peer"])
def test_what_gloo_says_of_a_lost_peer_is_never_the_first_failure(echo):
    def both(group):
        if dist.get_rank(group) == 0:
            raise RuntimeError(f"[tcp/pair.cc:400] {echo}")
        time.sleep(0.1)
        raise ValueError("the cause")

    with pytest.raises(RankError, match=r"rank 1 of 2 failed first: ValueError: the cause"):
        run_ranks(both, 2)


def test_the_earliest_of_two_failures_is_told_though_it_is_heard_later(tmp_path):
    class SlowToTell(Exception):
        def __str__(self):
            if not (tmp_path / "raised").exists():
                (tmp_path / "raised").touch()
                time.sleep(0.05)
            return "first"

    def both(group):
        if dist.get_rank(group) == 1:
            raise SlowToTell
        while not (tmp_path / "raised").exists():
            time.sleep(0.001)
        raise ValueError("second")

    with pytest.raises(RankError, match="rank 1 of 2 failed first: SlowToTell: first"):
        run_ranks(both, 2)


@pytest.mark.parametrize("fate", FATES)
def test_a_rank_that_leaves_without_a_result_is_named(fate):
    end = FATES[fate]

    def leaves(group):
        if dist.get_rank(group) == 1:
            end()
        dist.barrier(group=group)

    with pytest.raises(RankError, match=f"rank 1 of 2 failed first: .*{fate}") as caught:
        run_ranks(leaves, 2)
    assert caught.value.rank == 1


def test_a_crash_in_c_shows_the_users_line_and_the_last_output():
    def crashes(group):
        os.write(2, b"C++ says why\n")
        os.abort()

    with pytest.raises(RankError, match=r"os\.abort\(\)(.|\n)*C\+\+ says why"):
        run_ranks(crashes, 1, echo=False)


def hangs(group):
    rank = dist.get_rank(group)
    if rank == 0:
        return
    dist.all_reduce(torch.ones(3), group=group)


def test_a_hang_ends_with_the_place_of_every_rank():
    start = time.monotonic()
    with pytest.raises(RankTimeout, match="1 of 2 ranks had not returned after 1 s") as caught:
        run_ranks(hangs, 2, timeout=1)
    assert time.monotonic() - start < 5
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert list(error.stacks) == [1]
    assert "dist.all_reduce(torch.ones(3), group=group)" in error.stacks[1]
    assert error.last[0] == "none"
    assert error.last[1].startswith("all_reduce(float32 [3]) at test_launch_errors.py:")
    assert "rank 0: has returned" in str(error)
    assert "rank 1: waits in all_reduce(float32 [3])" in str(error)


def test_a_rank_that_computes_for_ever_is_told_from_one_that_waits():
    def sleeps(group):
        time.sleep(60)

    with pytest.raises(
        RankTimeout, match=r'rank 0: is at File ".*", line \d+, in sleeps'
    ) as caught:
        run_ranks(sleeps, 1, timeout=0.2)
    assert "time.sleep(60)" in caught.value.stacks[0]


def test_the_mismatch_detector_names_both_calls():
    def mixed(group):
        if dist.get_rank(group) == 0:
            dist.all_reduce(torch.ones(3), group=group)
        else:
            dist.broadcast(torch.ones(3), 0, group=group)

    with pytest.raises(RankError, match=r"rank 0: all_reduce(.|\n)*rank 1: broadcast"):
        run_ranks(mixed, 2, debug=True)
    with pytest.raises(RankError, match="rank 1 ended and never issued its part"):
        run_ranks(lambda group: dist.get_rank(group) or dist.barrier(), 2, debug=True)


def test_debug_can_be_asked_for_by_the_environment(monkeypatch):
    monkeypatch.setenv("LABKIT_DEBUG", "1")
    with pytest.raises(RankError, match="rank 0 ended and never issued its part"):
        run_ranks(hangs, 2, timeout=20)


def test_a_failure_does_not_spoil_the_next_world():
    with pytest.raises(RankError):
        run_ranks(lambda group: 1 / 0, 2)
    assert run_ranks(lambda group: dist.get_rank(group), 2) == [0, 1]


def test_children_of_a_failed_rank_die_with_it(tmp_path):
    def starts_a_child(group):
        child = subprocess.Popen(["sleep", "1234"])
        (tmp_path / "pid").write_text(str(child.pid))
        raise ValueError("too late")

    with pytest.raises(RankError, match="too late"):
        run_ranks(starts_a_child, 1)
    assert gone([int((tmp_path / "pid").read_text())], 1)


def test_an_interrupt_is_immediate_and_leaves_nothing(tmp_path):
    def waits(group):
        (tmp_path / str(dist.get_rank(group))).write_text(str(os.getpid()))
        time.sleep(60)

    def interrupt():
        while len([f for f in tmp_path.iterdir() if f.stat().st_size]) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(waits, 2)
    thread.join()
    assert gone([int(file.read_text()) for file in tmp_path.iterdir()], 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert run_ranks(lambda group: 5, 1) == [5]


PARENT = """
folder = {!r}
import os, subprocess, time
from labkit.launch import run_ranks
def waits(group):
    child = subprocess.Popen(["sleep", "1234"])
    with open(folder + "/" + os.environ["RANK"], "w") as file:
        print(os.getpid(), child.pid, file=file)
    time.sleep(600)
run_ranks(waits, 2)
"""


def test_no_orphan_when_the_parent_is_killed(tmp_path):
    text, folder = tmp_path / "text", tmp_path / "pids"
    text.write_text(PARENT.format(str(folder)))
    folder.mkdir()
    with text.open() as source:
        parent = subprocess.Popen([sys.executable, "-"], stdin=source)
    try:
        end = time.monotonic() + 100
        while sum(len(file.read_text().split()) for file in folder.iterdir()) < 4:
            assert parent.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        pids = [int(pid) for file in folder.iterdir() for pid in file.read_text().split()]
        pids += children(parent.pid)  # the fork server and the resource tracker
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.wait()
    assert gone(pids, 3)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
