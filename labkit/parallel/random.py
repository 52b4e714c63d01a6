"""Random numbers that agree where activations are replicated, and differ where they are split.

    seed of an entry = hash(seed, region, place, number of the entry)

| region     | place            | same on | different on | for                              |
| ---------- | ---------------- | ------- | ------------ | -------------------------------- |
| replicated | (replica,)       | tp      | dp           | dropout after an all-reduce      |
| sharded    | (replica, shard) | nowhere | dp and tp    | dropout on own heads, own tokens |

Without the first, ranks drop different units of one tensor, and what should be replicated is not.
Without the second, each rank repeats the same mask on its own part.

Every entry starts afresh from its number, so numbers that one rank draws elsewhere, or more of them
inside a region, change nothing in the entries after. Outside of the regions torch's own generators
go on as if nothing had happened.

Cost: no communication; a seeding of torch's generators an entry.
Source: Megatron-LM (arXiv 1909.08053), appendix B.2.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import blake2b

import torch

REGIONS = ("replicated", "sharded")


class RandomStreams:
    """The random streams of one rank.

    Args:
        seed: of the run, the same on every rank.
        replica: this rank's coordinate among those that read different data (dp).
        shard: this rank's coordinate among those that share one tensor (tp).
    """

    def __init__(self, seed: int, *, replica: int, shard: int) -> None:
        self._places = {"replicated": f"{seed}/{replica}", "sharded": f"{seed}/{replica}/{shard}"}
        self._entries = dict.fromkeys(REGIONS, 0)

    def replicated(self) -> AbstractContextManager[None]:
        """Random numbers in here are the same on the ranks that share a tensor."""
        return self._region("replicated")

    def sharded(self) -> AbstractContextManager[None]:
        """Random numbers in here are this rank's own."""
        return self._region("sharded")

    def state(self) -> dict[str, int]:
        """Entries so far, for a checkpoint, or to recompute a forward pass with the same masks."""
        return dict(self._entries)

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on, or back, to a `state()`.

        Raises:
            ValueError: if the state is not one of these regions.
        """
        if set(state) != set(REGIONS):
            raise ValueError(f"a state of {sorted(state)}, and the regions are {REGIONS}")
        self._entries = dict(state)

    @contextmanager
    def _region(self, region: str) -> Iterator[None]:
        name = f"{region}/{self._places[region]}/{self._entries[region]}"
        self._entries[region] += 1
        digest = blake2b(name.encode(), digest_size=8).digest()
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int.from_bytes(digest, "big") >> 1)  # a seed has 63 bits here
            yield
