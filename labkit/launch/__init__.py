"""Run one function on several ranks of this machine and bring back what each returned.

    run_ranks(lambda group, x: all_reduce(x, group), 4, torch.ones(3))

The function may come from a notebook cell, a script or a test; it is carried by value, and so are
its arguments and results. Every rank's output is shown whole, in rank order. The rank that failed
first is the one reported; a hang ends in RankTimeout with each rank's place; no process outlives
the call or the parent. A rank may call run_ranks too, from a fork server of its own (3 s).

The same function runs under torchrun, on one host or several, inside `with world() as group`. Ranks
see the variables that torchrun sets, so code that reads RANK or LOCAL_RANK runs under both.

Security: the call and the results are pickles in a folder that only this user can open (mode 0700).
The rendezvous listens on 127.0.0.1 alone, at a free port; torchrun's, a plain TCPStore, on all
interfaces. Other users of this machine can reach that port: nothing secret is stored there, nothing
is unpickled.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.launch.carry import pack_call, unpack_result
from labkit.launch.place import choose_gpu, loopback, num_gpus, open_store, world_environment
from labkit.launch.rank import CALL, Order, Outcome, join_world, last_call, rank_file
from labkit.launch.world import World, start_server

MAX_TIMEOUT_S = 1e6
LAST_LINES = 5  # of the output of a rank that died: C++ says there why
# Files of which the innermost frame is when a rank waits for others.
WAITING = ("torch/distributed/", "labkit/measure/")


class RankError(RuntimeError):
    """A rank failed: the first that did, and its traceback."""

    def __init__(self, message: str, *, rank: int = 0, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.traceback = traceback


class RankTimeout(TimeoutError):
    """Ranks did not return in time: the stack of each that runs, and the last call of each."""

    def __init__(
        self,
        message: str,
        *,
        stacks: dict[int, str] | None = None,
        last: dict[int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.stacks = stacks or {}
        self.last = last or {}


def run_ranks(
    fn: Callable,
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    echo: bool = True,
    device: str | None = None,
    debug: bool | None = None,
) -> list:
    """Call fn(group, *args) on every rank of a fresh world.

    Args:
        fn: gets the world's process group first, then args: a copy a rank, tensors on the CPU.
        world_size: number of processes.
        timeout: seconds, from the moment that all ranks are ready.
        echo: print what the ranks printed, each line after "[rank i] ".
        device: "cuda" is a GPU a rank over NCCL, "cpu" gloo; None "cuda" if there are enough GPUs.
        debug: compare every collective between its ranks before it is issued; None does so for
            functions from a notebook cell, or where LABKIT_DEBUG=1.

    Returns:
        What fn returned, in rank order: tensors on the CPU and outside any graph, without .grad.

    Raises:
        ValueError: for an argument out of range, or one that cannot be carried over.
        RankError: if a rank failed, died or returned what cannot be sent back.
        RankTimeout: if a rank did not return in time.
    """
    _check(fn, world_size, timeout, device)
    on_gpu = choose_gpu(world_size, device)
    parcel = pack_call(fn, args)
    if debug is None:
        debug = bool(parcel.cells) or os.environ.get("LABKIT_DEBUG") == "1"
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as folder:
        Path(folder, CALL).write_bytes(parcel.payload)
        store = open_store()
        order = Order(
            rank=0,
            world_size=world_size,
            folder=folder,
            cells=parcel.cells,
            environment=world_environment(world_size, store.port),
            server=start_server(),
            start_method=multiprocessing.get_start_method(allow_none=True),
            timeout=2 * timeout + 30.0,  # a backstop: ours comes first and tells more
            on_gpu=on_gpu,
            debug=debug,
        )
        try:
            with World([replace(order, rank=rank) for rank in range(world_size)]) as ranks:
                outcomes = ranks.wait(timeout)
                stacks = ranks.stacks()
        finally:
            for rank in range(world_size if echo else 0):
                for line in _output(folder, rank):
                    print(f"[rank {rank}] {line}")
        return _results(folder, outcomes, stacks, timeout)


@contextmanager
def world(timeout: float = 60.0) -> Iterator[dist.ProcessGroup]:
    """The process group of a world that torchrun started, a GPU a process if hosts have enough.

    Args:
        timeout: of a collective, in seconds.

    Raises:
        RuntimeError: outside of torchrun.
    """
    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "world() reads torchrun's variables and LOCAL_WORLD_SIZE is not set; "
            "start the program with torchrun, or use run_ranks"
        )
    local = os.environ["LOCAL_WORLD_SIZE"]
    if local == os.environ["WORLD_SIZE"]:
        os.environ.update(loopback())
    group = join_world(timeout, on_gpu=num_gpus() >= int(local))
    try:
        yield group
        # Leave together: a process that ends while its peer still talks, and that holds the group
        # in a global variable, was seen to abort in gloo's destructors.
        dist.barrier(group)
    finally:
        dist.destroy_process_group()


def device() -> torch.device:
    """This rank's GPU over NCCL, else the CPU; without a world, a GPU if there is one."""
    if dist.is_initialized():
        on_gpu = "nccl" in dist.get_backend_config()
    else:
        on_gpu = torch.cuda.device_count() > 0
    index = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", index) if on_gpu else torch.device("cpu")


def _check(fn: Callable, world_size: int, timeout: float, device: str | None) -> None:
    if sys.platform == "win32":
        raise RuntimeError("run_ranks needs Linux or macOS; on Windows use WSL")
    if not callable(fn):
        raise ValueError(f"run_ranks calls a function on every rank; {fn!r} is not callable")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout must be over 0 and at most {MAX_TIMEOUT_S:g} s, got {timeout!r}")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f'device must be "cpu", "cuda" or None, got {device!r}')


def _output(folder: str, rank: int) -> list[str]:
    path = rank_file(folder, "output", rank)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return text.removesuffix("\n").split("\n") if text else []


def _results(
    folder: str, outcomes: dict[int, Outcome], stacks: dict[int, str], timeout: float
) -> list:
    if failures := {r: o for r, o in outcomes.items() if o.state in ("failed", "died")}:
        raise _first_failure(folder, failures, len(outcomes)) from None
    if stacks:
        raise _timed_out(folder, outcomes, stacks, timeout) from None
    results = []
    for rank in outcomes:
        try:
            results.append(unpack_result(rank_file(folder, "result", rank).read_bytes()))
        except Exception as error:  # a class's own __setstate__ may raise anything
            raise RankError(
                f"the result of rank {rank} cannot be read here: {error}", rank=rank
            ) from error
    return results


def _first_failure(folder: str, failures: dict[int, Outcome], world_size: int) -> RankError:
    """The earliest failure; a lost peer's echo only where nothing else is known."""
    rank = min(failures, key=lambda r: (failures[r].echo, failures[r].when))
    first = failures[rank]
    message = f"rank {rank} of {world_size} failed first: {first.summary}"
    if first.traceback:
        message += f"\n\n{first.traceback.rstrip()}"
    if first.state == "died" and (tail := _output(folder, rank)[-LAST_LINES:]):
        message += "\n\nits last output:\n" + "\n".join(tail)
    return RankError(message, rank=rank, traceback=first.traceback)


def _timed_out(
    folder: str, outcomes: dict[int, Outcome], stacks: dict[int, str], timeout: float
) -> RankTimeout:
    last = {rank: last_call(folder, rank) for rank in outcomes}
    lines = [f"{len(stacks)} of {len(outcomes)} ranks had not returned after {timeout:g} s"]
    for rank in outcomes:
        lines.append(f"rank {rank}: {_state(outcomes[rank], stacks.get(rank, ''), last[rank])}")
    lines += [f"\nrank {rank} is here:\n{stack.rstrip()}" for rank, stack in stacks.items()]
    return RankTimeout("\n".join(lines), stacks=stacks, last=last)


def _state(outcome: Outcome, stack: str, last: str) -> str:
    if outcome.state == "starting":
        return "has not joined the world yet"
    made = "it made no call" if last == "none" else f"its last call was {last}"
    if outcome.state == "returned":
        return f"has returned; {made}"
    innermost = stack[stack.rfind('File "') :].partition("\n")[0]
    if any(part in innermost for part in WAITING):
        return f"waits in {last}"
    return f"is at {innermost or 'an unknown place'}; {made}"
