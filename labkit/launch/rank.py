"""What happens inside one rank's process, from its first line to os._exit.

A rank takes its environment, folder and arguments from its Order, sends its output to a file, joins
the world, calls the function and tells the parent how that went. Then it stays until the parent
says that all are done: a rank that left early would break its peers' connections, and their
complaints would hide the cause.
"""

import faulthandler
import io
import mmap
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.launch import carry
from labkit.launch.carry import pack_result, unpack_call
from labkit.measure.call import Call
from labkit.measure.hook import subscribe
from labkit.measure.mismatch import detect_mismatches

CALL = "call"  # the file that holds the function and its arguments
LAST_CALL_BYTES = 4096
# How gloo, NCCL and the mismatch detector complain when a peer is gone.
ECHOES = re.compile(
    "closed by peer|reset by peer|Broken pipe|Connection refused|remote process exited"
    "|Pair is not connected|caused pair closure|ended with .* and never issued its part"
)
# How often a rank looks for its parent, should somebody else hold the other end of its pipe open.
PARENT_CHECK_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one rank must know.

    Args:
        folder: private to this world; holds the call, and what rank_file names.
        cells: texts of the notebook cells that the function comes from.
        environment: all of os.environ but RANK; the fork server's is as old as its first world.
        server: process number of the fork server, this rank's parent for the operating system.
        start_method: of processes that the rank starts, the parent's; None is Python's default.
        timeout: of a collective, in seconds; a backstop, the parent's comes first.
    """

    rank: int
    world_size: int
    folder: str
    cells: dict[str, str]
    environment: dict[str, str]
    server: int | None
    start_method: str | None
    timeout: float
    on_gpu: bool
    debug: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How far a rank came.

    Args:
        state: "starting", "running" the function, "returned", "failed" (it raised) or "died"
            (it ended without a word).
        when: time.monotonic(), one clock for all processes of a machine.
        summary: one line.
        echo: it says that a peer was lost, which is never the cause.
    """

    state: str
    when: float = 0.0
    summary: str = ""
    traceback: str = ""
    echo: bool = False


def rank_file(folder: str, kind: str, rank: int) -> Path:
    """Where a rank leaves its "output", "stack", "last" call and "result"."""
    return Path(folder, f"{kind}{rank}")


def last_call(folder: str, rank: int) -> str:
    """The newest communication call that a rank issued, in words."""
    path = rank_file(folder, "last", rank)
    text = path.read_bytes().partition(b"\0")[0].decode() if path.exists() else ""
    return text or "none"


def rank_main(order: Order, parent: Connection) -> None:
    """Run one rank; never returns."""
    os.setpgid(0, 0)  # Ctrl-C reaches the notebook alone; killpg reaches whatever this rank starts
    threading.Thread(target=_end_with_parent, args=(order,), daemon=True).start()
    _capture_output(rank_file(order.folder, "output", order.rank))
    with rank_file(order.folder, "stack", order.rank).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        faulthandler.enable(file=stack, all_threads=False)
        try:
            _settle(order)
            _call(order, parent)
            outcome = Outcome(state="returned", when=time.monotonic())
        except BaseException as error:  # SystemExit and KeyboardInterrupt end a rank like any error
            outcome = _failure(error)
        sys.stdout.flush()
        sys.stderr.flush()
        parent.send(outcome)
        with suppress(EOFError):
            parent.recv()  # the word that all have returned; after a failure we are killed here
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.stdout.flush()
        os._exit(0)  # no destructors: nothing that the function forgot can hang or abort now


def join_world(timeout: float, on_gpu: bool) -> dist.ProcessGroup:
    """Initialise the default process group from torchrun's variables."""
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    assert dist.group.WORLD is not None, "init_process_group sets it"
    return dist.group.WORLD


def _call(order: Order, parent: Connection) -> None:
    fn, args = unpack_call(Path(order.folder, CALL).read_bytes(), order.cells)
    group = join_world(order.timeout, order.on_gpu)
    subscribe(_recorder(rank_file(order.folder, "last", order.rank)))
    with _detector(order) if order.debug else nullcontext():
        parent.send(Outcome(state="running"))  # from here on, the caller's timeout runs
        result = fn(group, *args)
    rank_file(order.folder, "result", order.rank).write_bytes(pack_result(result))


def _detector(order: Order) -> AbstractContextManager[None]:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    return detect_mismatches(store, order.rank, order.world_size, order.timeout)


def _settle(order: Order) -> None:
    os.environ.clear()
    os.environ.update(order.environment, RANK=str(order.rank), LOCAL_RANK=str(order.rank))
    # A fork server's child would start others by fork server, which pickles a DataLoader's workers.
    multiprocessing.set_start_method(order.start_method, force=True)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].partition(",")[0]))


def _capture_output(path: Path) -> None:
    """Send descriptors 1 and 2 to a file: it catches C++ and child processes too."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(file, number)
        binary = os.fdopen(number, "wb", closefd=False)
        stream = io.TextIOWrapper(binary, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)


def _recorder(path: Path) -> Callable[[Call], None]:
    """Write each call to a file before it is issued: the parent reads it when this rank hangs."""
    path.write_bytes(bytes(LAST_CALL_BYTES))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), LAST_CALL_BYTES)

    def record(call: Call) -> None:
        text = str(call).encode()[: LAST_CALL_BYTES - 1] + b"\0"
        memory[: len(text)] = text

    return record


def _end_with_parent(order: Order) -> None:
    """Outlive neither the parent nor the world's folder; take the children of this rank along."""
    parent = parent_process()
    assert parent is not None, "a rank is started by a parent"
    try:
        while not wait([parent.sentinel], PARENT_CHECK_S) and os.path.exists(order.folder):
            os.kill(int(parent.pid or 0), 0)
        parent_lives = not wait([parent.sentinel], 0)
    except ProcessLookupError:
        parent_lives = False
    if not parent_lives and os.getppid() == order.server:
        os.kill(os.getppid(), signal.SIGKILL)  # by itself it would unload torch first, for seconds
    shutil.rmtree(order.folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _failure(error: BaseException) -> Outcome:
    when = time.monotonic()
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, carry.__file__):
        trace = trace.tb_next  # the user's frames only
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        summary = f"left by sys.exit before it returned (exit code {code})"
    else:
        summary = f"{type(error).__name__}: {error}"
    text = "".join(traceback.format_exception(type(error), error, trace))
    return Outcome(
        state="failed",
        when=when,
        summary=summary,
        traceback=text,
        echo=bool(ECHOES.search(summary)),
    )
