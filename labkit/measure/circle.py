"""Ranks that wait for each other in a circle: found through a shared store, and proved.

A rank that waits publishes whom it waits for, and by which keys it would see them come. Three looks
prove a deadlock: every rank of the circle is blocked; none of the keys is there; every rank is
still in the same wait. A blocked rank posts nothing, so nothing came in between and nothing ever
will. The proof holds for ranks of one thread.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch.distributed as dist

Waits = dict[int, tuple[str, ...]]  # rank → the keys of which one must appear


@dataclass(frozen=True, kw_only=True)
class _Wait:
    rank: int
    number: int  # tells one wait of a rank from its next
    text: str
    keys: dict[str, list[str]]  # as Waits, in JSON's types


class Blocked:
    """This rank's wait, and a look at those of the others."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.store, self.rank = store, rank
        self.mine: _Wait | None = None
        self.waits = 0

    def publish(self, text: str, missing: Waits) -> None:
        """Tell the others what this rank waits for; again only when that has changed."""
        keys = {str(rank): list(names) for rank, names in missing.items()}
        if self.mine and (self.mine.text, self.mine.keys) == (text, keys):
            return
        self.waits += 1
        self.mine = _Wait(rank=self.rank, number=self.waits, text=text, keys=keys)
        self.store.set(f"blocked/{self.rank}", json.dumps(asdict(self.mine)))

    def retract(self) -> None:
        """Tell the others that the wait is over."""
        if self.mine:
            self.store.set(f"blocked/{self.rank}", "")
            self.mine = None

    def texts(self, ranks: Iterable[int]) -> list[str]:
        """What those of the ranks that are blocked are waiting in."""
        return [wait.text for rank in ranks if (wait := self._wait(rank))]

    def circle(self) -> dict[int, str]:
        """Rank → text of the waits that form a proved circle with this one; empty if none do."""
        path = self._search([self.mine], {self.rank}) if self.mine else []
        for wait, other in zip(path, path[1:] + path[:1], strict=True):
            if any(read_key(self.store, key) for key in wait.keys[str(other.rank)]):
                return {}
        if any(self._wait(wait.rank) != wait for wait in path):
            return {}
        return {wait.rank: wait.text for wait in sorted(path, key=lambda wait: wait.rank)}

    def _search(self, path: list[_Wait], seen: set[int]) -> list[_Wait]:
        """A way from this rank back to this rank, each blocked and waiting for the next."""
        for rank in map(int, path[-1].keys):
            if rank == self.rank:
                return path
            wait = None if rank in seen else self._wait(rank)
            seen.add(rank)
            if wait and (found := self._search([*path, wait], seen)):
                return found
        return []

    def _wait(self, rank: int) -> _Wait | None:
        text = read_key(self.store, f"blocked/{rank}")
        return _Wait(**json.loads(text)) if text else None


def read_key(store: dist.Store, key: str) -> bytes:
    """What a key holds now, without waiting for it."""
    return store.get(key) if store.check([key]) else b""
