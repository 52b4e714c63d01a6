"""The order of the training data: a function of (seed, step), the same for any number of ranks.

Works are joined to one stream of tokens and cut into windows. An epoch visits every window once, in
an order and at an offset drawn from the seed and the epoch, so nothing has to be stored to resume.

Shapes: B sequences in a global batch, T tokens in a sequence, N ranks.
"""

from dataclasses import dataclass

import torch

from labkit.model.tokenizer import BOS, EOS


def token_stream(works: dict[str, bytes]) -> torch.Tensor:
    """BOS, the bytes of a work, EOS, for all works in order, as one int64 tensor."""
    pieces = []
    for text in works.values():
        pieces += [torch.tensor([BOS]), torch.tensor(list(text)), torch.tensor([EOS])]
    return torch.cat(pieces).long()


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Deterministic batches of a stream.

    Args:
        stream: int64 tokens.
        batch_size: sequences B in a global batch, over all ranks.
        seq_len: tokens T in a sequence.
    """

    stream: torch.Tensor
    batch_size: int
    seq_len: int
    seed: int

    def __post_init__(self):
        if self.windows_per_epoch < 1:
            raise ValueError(
                f"a stream of {len(self.stream)} tokens has no window of {self.seq_len}; it needs "
                f"at least {2 * self.seq_len + 1}"
            )

    @property
    def windows_per_epoch(self) -> int:
        return (len(self.stream) - 1) // self.seq_len - 1  # one less leaves room for the offset

    def batch(
        self, step: int, rank: int = 0, world_size: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's inputs and targets, each [B/N, T]; targets are inputs one token later.

        Raises:
            ValueError: if the batch does not divide over the ranks.
        """
        if self.batch_size % world_size:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide over {world_size} ranks"
            )
        share = self.batch_size // world_size
        first = step * self.batch_size + rank * share
        rows = [self._window(index) for index in range(first, first + share)]
        tokens = torch.stack(rows)  # [B/N, T + 1]
        return tokens[:, :-1], tokens[:, 1:]

    def _window(self, index: int) -> torch.Tensor:
        epoch, position = divmod(index, self.windows_per_epoch)
        order, offset = self._epoch(epoch)
        start = offset + int(order[position]) * self.seq_len
        return self.stream[start : start + self.seq_len + 1]

    def _epoch(self, epoch: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        offset = int(torch.randint(self.seq_len, (), generator=generator))
        return torch.randperm(self.windows_per_epoch, generator=generator), offset
