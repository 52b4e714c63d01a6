"""What ranks tell their parent while they run, and the wish that they stop, on its way to them.

    with listening(print) as channel:                   # in the parent
        run_ranks(work, 4, channel)                     # in a rank: channel.tell(dict(step=3)),
                                                        # and channel.stop_wanted() between steps

The first Ctrl-C (SIGINT) or SIGTERM asks: ranks that look may save and return. A second one is a
KeyboardInterrupt, which ends the ranks at once. Under torchrun each rank is asked by itself:

    with asked_to_stop() as asked: ...                  # in the rank

A rank may be asked a step before its peers are, so the ranks must agree before they leave.

Cost: a line in a file for each word; the parent reads ten times a second.
"""

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
READ_S = 0.1


@dataclass(frozen=True)
class Channel:
    """A rank's end; it may be sent to the ranks of run_ranks.

    Args:
        folder: private to this run, on the parent's host.
    """

    folder: str

    def tell(self, word: Mapping[str, Any]) -> None:
        """Send the parent a dict of numbers and strings; only one rank of a world may tell."""
        with Path(self.folder, "told").open("a", encoding="utf-8") as file:
            file.write(json.dumps(word) + "\n")

    def stop_wanted(self) -> bool:
        """Whether the parent has been asked to end the run."""
        return Path(self.folder, "stop").exists()


@contextmanager
def listening(hear: Callable[[dict[str, Any]], object]) -> Iterator[Channel]:
    """Hear what a rank tells, in order and to the last word, on a thread of its own."""
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as folder:
        done = threading.Event()
        thread = threading.Thread(target=_read, args=(Path(folder, "told"), hear, done))
        thread.start()
        try:
            with _on_first_signal(Path(folder, "stop").touch):
                yield Channel(folder)
        finally:
            done.set()
            thread.join()


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether this process was asked to end, instead of ending it."""
    asked = threading.Event()
    with _on_first_signal(asked.set):
        yield asked.is_set


@contextmanager
def _on_first_signal(act: Callable[[], object]) -> Iterator[None]:
    """Act on the first signal; the second raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    came: list[int] = []

    def handle(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        act()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read(path: Path, hear: Callable[[dict[str, Any]], object], done: threading.Event) -> None:
    """Follow a file of lines until all is said and done."""
    read, last = 0, False
    while not last:
        last = done.wait(READ_S)  # what was told before the end is still read
        if not path.exists():
            continue
        with path.open("rb") as file:
            file.seek(read)
            whole = file.read().rpartition(b"\n")[0]
        read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            hear(json.loads(line))
