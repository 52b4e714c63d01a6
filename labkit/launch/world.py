"""One world seen from its parent: start the ranks, hear how each ends, leave nothing running.

Ranks are forked from a server that has imported torch already: a world of four starts in 0.2 s
instead of 10. Each leads a process group of its own, so one kill takes its data-loading workers
along.
"""

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from traceback import FrameSummary, format_list
from types import TracebackType
from typing import Any, Self

from labkit.launch.rank import Order, Outcome, rank_file, rank_main

# Imported once, by the fork server. Without torch._dynamo each rank that builds DDP or calls
# optimizer.step imports 800 modules (4 s); backward(gradient) needs symbolic_shapes (0.8 s).
PRELOAD = [
    "labkit.launch",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "torch.testing",
    "torch.utils.flop_counter",
    "torch.utils.data",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
]
# What the server's libraries read when they load. One thread a rank; torch's notes on its sockets
# have times and addresses; counting GPUs without NVML would start CUDA, which no fork can use.
SERVER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
STARTUP_S = 120.0  # for imports and rendezvous, before the caller's own timeout begins
GRACE_S = 0.2  # after a failure, for one that came before it and is told later
ECHO_GRACE_S = 1.0  # after the complaint of a lost peer, for the loss itself
EXIT_S = 2.0  # for ranks that have returned, to leave by themselves
FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
OURS = "labkit/launch/rank.py"  # calls the user's function
_STARTING = threading.Lock()  # the fork server and __main__ belong to the whole process


class World:
    """The processes of one world, alive between `with` and its end at most."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.connections: list[Connection] = []
        self.outcomes = {order.rank: Outcome(state="starting") for order in orders}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if len(self._in_state("returned")) == len(self.orders):
                self._dismiss()
        finally:
            self._kill()

    def wait(self, timeout: float) -> dict[int, Outcome]:
        """Hear the ranks until all have returned, one has failed, or time is up.

        Args:
            timeout: seconds, counted from when all ranks are ready.
        """
        deadline = time.monotonic() + STARTUP_S
        while unfinished := self._in_state("starting", "running"):
            started = not self._in_state("starting")
            told = self._hear(unfinished, deadline - time.monotonic())
            if not told:
                break
            self.outcomes.update(told)
            now = time.monotonic()
            if failures := self._in_state("failed", "died"):
                only_echoes = all(self.outcomes[rank].echo for rank in failures)
                deadline = min(deadline, now + (ECHO_GRACE_S if only_echoes else GRACE_S))
            elif not started and not self._in_state("starting"):
                deadline = now + timeout
        return self.outcomes

    def stacks(self) -> dict[int, str]:
        """Where each unfinished rank is, outermost call first; nothing if a rank has failed."""
        running = self._in_state("starting", "running")
        if self._in_state("failed", "died"):
            return {}
        for rank in running:
            with suppress(ProcessLookupError):
                os.kill(self._pid(rank), signal.SIGUSR1)
        deadline = time.monotonic() + 1.0  # a stopped process never answers
        while time.monotonic() < deadline:
            if all(stack_is_whole(self._stack_text(rank)) for rank in running):
                break
            time.sleep(0.01)
        return {rank: self._stack(rank) for rank in running}

    def _in_state(self, *states: str) -> list[int]:
        return [rank for rank, outcome in self.outcomes.items() if outcome.state in states]

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        with _STARTING, _unseen_main():
            for order in self.orders:
                ours, theirs = context.Pipe()
                # A daemon could not start the workers of a DataLoader.
                process = context.Process(target=rank_main, args=(order, theirs), daemon=False)
                self.processes.append(process)
                self.connections.append(ours)
                process.start()
                theirs.close()

    def _hear(self, ranks: list[int], limit: float) -> dict[int, Outcome]:
        """What these ranks tell within limit seconds, by message or by death."""
        sources: dict[Any, int] = {}
        for rank in ranks:
            sources[self.connections[rank]] = rank
            sources[self.processes[rank].sentinel] = rank
        heard = wait(list(sources), max(0.0, limit))
        return {rank: self._told(rank) for rank in sorted({sources[source] for source in heard})}

    def _told(self, rank: int) -> Outcome:
        try:
            if self.connections[rank].poll():
                return self.connections[rank].recv()
        except (EOFError, OSError):  # it died, perhaps in the middle of a word
            pass
        process = self.processes[rank]
        process.join(EXIT_S)
        summary = _death(process.exitcode)
        return Outcome(
            state="died", when=time.monotonic(), summary=summary, traceback=self._stack(rank)
        )

    def _dismiss(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.send("all have returned")
        deadline = time.monotonic() + EXIT_S
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def _kill(self) -> None:
        """End every rank and whatever it started; a rank that has left may have left children."""
        for process in self.processes:
            if process.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()  # it may not lead its group yet
        for process, connection in zip(self.processes, self.connections, strict=True):
            connection.close()
            if process.pid is not None:
                process.join(EXIT_S)

    def _pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None, "it was started"
        return pid

    def _stack_text(self, rank: int) -> str:
        path = rank_file(self.orders[rank].folder, "stack", rank)
        return path.read_text() if path.exists() else ""

    def _stack(self, rank: int) -> str:
        frames = []
        for file, line, name in FRAME.findall(self._stack_text(rank)):
            if file.endswith(OURS):
                break  # what called the user's function is ours
            text = self.orders[rank].cells.get(file, "").splitlines()[int(line) - 1 : int(line)]
            frames.append(FrameSummary(file, int(line), name, line=text[0] if text else None))
        return "".join(format_list(frames[::-1]))


def stack_is_whole(text: str) -> bool:
    """Whether a dump, which is written frame by frame, has all frames of the user's.

    The innermost comes first, so ours stands behind them; a dump of very many ends in dots.
    """
    lines = text.splitlines()
    return any(OURS in line for line in lines) or lines[-1:] == ["  ..."]


def _death(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended without a result (exit code {exitcode})"


def start_server() -> int | None:
    """Start the fork server unless it runs; the user's variables win over SERVER_ENVIRONMENT.

    Returns:
        Its process number.
    """
    names = [*PRELOAD, "pytest"] if "pytest" in sys.modules else PRELOAD
    multiprocessing.set_forkserver_preload(names)
    added = {name: value for name, value in SERVER_ENVIRONMENT.items() if name not in os.environ}
    with _STARTING:
        os.environ.update(added)
        try:
            forkserver.ensure_running()
        finally:
            for name in added:
                del os.environ[name]
    return getattr(forkserver._forkserver, "_forkserver_pid", None)


@contextmanager
def _unseen_main() -> Iterator[None]:
    """A new process would run the user's script again; functions come by value, so hide it."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)
