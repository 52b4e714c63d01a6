"""Collective-mismatch detector: an error on every involved rank instead of a hang or mixed numbers.

    with detect_mismatches(store, rank, world_size, timeout):
        train()

Before a rank issues a call it posts what it is about to do in a store that all ranks share, and
compares it with the others' posts at the same place: the n-th collective of a group, the n-th
message with one tag from one rank to another (agreement.py has the rules). The error says who did
what, and where:

    rank 0: all_reduce(float32 [4]) at lab.py:12; rank 1: all_gather(float32 [4]) at lab.py:14:
    ranks of group 'world' must issue the same operation in the same order

A synchronous call waits until its partners have posted; an asynchronous one compares with what is
there and does the rest when it is waited for. A slow partner is no error. An error needs a proof: a
post that does not fit; a partner that has left; or ranks that wait for each other in a circle. The
last holds for single-threaded ranks only: other threads might still help.

Cost: a few store operations a call, and the overlap of torch DDP (its C++ calls wait here too). The
store grows by about 400 bytes a call and rank. This is a debug mode.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from .agreement import Post, disagreement
from .call import Call
from .circle import Blocked, Waits, read_key
from .hook import subscribed

MESSAGES = ("send", "recv")
PATIENCE_S = 0.05  # a wait longer than this is published, for others to find circles
LONGEST_PAUSE_S = 0.005


class CollectiveMismatch(RuntimeError):
    """Ranks issued calls that do not fit together; the message names ranks and lines."""


@contextmanager
def detect_mismatches(
    store: dist.Store, rank: int, world_size: int, timeout: float = 60.0
) -> Iterator[None]:
    """Check every communication call of this process against those of the other ranks.

    Args:
        store: any store that all ranks share, fresh for this block; keys get the prefix "mismatch".
        rank: of this process in the world.
        world_size: must be the same on all ranks.
        timeout: seconds after which a call gives up on partners that have not come.

    Raises:
        CollectiveMismatch: in the call that does not fit, on every rank involved.
    """
    detector = _Detector(dist.PrefixStore("mismatch", store), rank, world_size, timeout)
    ending = "ended"
    try:
        with subscribed(detector.issued, detector.waited):
            yield
    except BaseException as error:
        ending = f"ended with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise
    finally:
        detector.leave(ending)


@dataclass
class _Meeting:
    """One call and the partners not seen yet: for each, the keys of which one must appear."""

    call: Call
    post: Post
    missing: Waits


class _Detector:
    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout: float) -> None:
        self.store, self.rank, self.timeout = store, rank, timeout
        self.lock = threading.Lock()
        self.places: Counter[str] = Counter()
        self.open: dict[int, _Meeting] = {}
        self.threads: set[int] = set()
        self.blocked = Blocked(store, rank)
        store.set(f"world/{rank}", str(world_size))
        for other in range(world_size):
            theirs = self._read(f"world/{other}")
            if theirs and int(theirs) != world_size:
                text = f"rank {rank} counts {world_size} ranks, rank {other} counts {int(theirs)}"
                self._accuse(
                    f"{text}: ranks must agree on the world", {*range(world_size), rank, other}
                )

    def issued(self, call: Call) -> None:
        """Post a call; unless it is asynchronous, wait for its partners."""
        self.threads.add(threading.get_ident())
        meeting = self._post(call)
        if call.asynchronous and not call.native:
            if self._look(meeting):
                self.open[call.sequence] = meeting
        else:
            self._meet(meeting)

    def waited(self, call: Call) -> None:
        """Wait for the partners of an asynchronous call."""
        meeting = self.open.pop(call.sequence, None)
        if meeting is not None:
            self._meet(meeting)

    def leave(self, ending: str) -> None:
        """Tell the others that no further call will come."""
        self.store.set(f"ended/{self.rank}", ending)

    def _post(self, call: Call) -> _Meeting:
        post, group = Post.of(call), call.group_name
        missing: Waits = {}
        if call.operation not in MESSAGES:
            place = f"{group}/{self._next(group)}"
            mine = f"{place}/{self.rank}"
            missing = {rank: (f"{place}/{rank}",) for rank in call.ranks if rank != self.rank}
        elif call.peer is None:  # a recv from anyone: nobody knows which send it will get
            mine = f"anyone/{group}/{self.rank}/{call.tag}"
        else:
            ends = (self.rank, call.peer) if call.operation == "send" else (call.peer, self.rank)
            route = f"{group}/{ends[0]}-{ends[1]}/{call.tag}"
            number = self._next(f"{call.operation}/{route}")
            other = MESSAGES[1 - MESSAGES.index(call.operation)]
            anyone = f"anyone/{group}/{ends[1]}/{call.tag}"
            mine = f"{call.operation}/{route}/{number}"
            missing = {call.peer: (f"{other}/{route}/{number}", anyone)}
        self.store.set(mine, post.dump())
        return _Meeting(call, post, missing)

    def _next(self, place: str) -> int:
        with self.lock:
            self.places[place] += 1
            return self.places[place]

    def _look(self, meeting: _Meeting) -> bool:
        """Compare with every partner that has come; whether some have not."""
        for partner, keys in list(meeting.missing.items()):
            post, *anyone = (self._read(key) for key in keys)
            if any(anyone):
                del meeting.missing[partner]
            elif post:
                text = disagreement(meeting.post, Post.parse(post))
                if text:
                    message = meeting.call.operation in MESSAGES
                    self._accuse(text, {self.rank, partner} if message else meeting.call.ranks)
                del meeting.missing[partner]
        return bool(meeting.missing)

    def _meet(self, meeting: _Meeting) -> None:
        """Wait until every partner has posted something that fits."""
        start, pause = time.monotonic(), 0.0005
        try:
            while self._look(meeting):
                self._raise_verdict()
                self._raise_if_left(meeting)
                waited = time.monotonic() - start
                if waited > self.timeout:
                    raise CollectiveMismatch(self._late(meeting))
                if waited > PATIENCE_S and self._alone():
                    text = f"{meeting.post.text} on {meeting.call.axis!r}"
                    self.blocked.publish(text, meeting.missing)
                    if circle := self.blocked.circle():
                        texts = "; ".join(circle.values())
                        self._accuse(f"{texts}: these ranks wait for each other", circle)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            self.blocked.retract()

    def _raise_if_left(self, meeting: _Meeting) -> None:
        left = {rank: self._read(f"ended/{rank}") for rank in meeting.missing}
        if any(left.values()) and self._look(meeting):  # it may have posted before it left
            for rank in meeting.missing:
                if left[rank]:
                    how = left[rank].decode()
                    text = f"{meeting.post.text}: rank {rank} {how} and never issued its part"
                    raise CollectiveMismatch(text)

    def _late(self, meeting: _Meeting) -> str:
        who = ", ".join(map(str, meeting.missing))
        told = "".join(f"; {text} waits too" for text in self.blocked.texts(meeting.missing))
        return f"{meeting.post.text}: no sign of rank {who} within {self.timeout:g} s{told}"

    def _alone(self) -> bool:
        """Whether only this thread can ever post for this rank."""
        others = [t for t in threading.enumerate() if not t.daemon]
        return len(self.threads) == 1 and len(others) == 1

    def _accuse(self, text: str, ranks: Iterable[int]) -> None:
        """Raise here, and on the other ranks when they next wait for somebody."""
        for rank in ranks:
            if not self._read(f"verdict/{rank}"):
                self.store.set(f"verdict/{rank}", text)
        self._raise_verdict()

    def _raise_verdict(self) -> None:
        verdict = self._read(f"verdict/{self.rank}")
        if verdict:
            raise CollectiveMismatch(verdict.decode())

    def _read(self, key: str) -> bytes:
        return read_key(self.store, key)
