"""Score a model on text it has not read, in bits a byte, beside a classical compressor.

    bits a byte = sum of −log2 p(byte | what came before) / number of bytes

Every byte is scored once, with at least `context` tokens before it (fewer only at a work's
beginning).
"""

import lzma
import math
from collections.abc import Iterator

import torch
from tqdm import tqdm

from labkit.model.tokenizer import BOS
from labkit.model.transformer import IGNORE, Transformer, next_token_loss


@torch.no_grad()
def bits_per_byte(
    model: Transformer, works: dict[str, bytes], context: int = 128, batch_size: int = 16
) -> float:
    """Bits a byte over all works together.

    Args:
        context: tokens that a window repeats from the one before, which are read but not scored.
    """
    device = next(model.parameters()).device
    num_bytes = sum(map(len, works.values()))
    nats = 0.0
    with tqdm(total=num_bytes, desc="scoring", unit="B", unit_scale=True, disable=None) as bar:
        for text in works.values():
            for inputs, targets in _windows(text, model.config.max_seq_len, context, batch_size):
                logits = model(inputs.to(device))
                nats += next_token_loss(logits, targets.to(device), reduction="sum").item()
                bar.update(int((targets != IGNORE).sum()))
    return nats / math.log(2) / num_bytes


def xz_bits_per_byte(works: dict[str, bytes]) -> float:
    """What `xz -9` needs for the same works, joined."""
    text = b"".join(works.values())
    return 8 * len(lzma.compress(text, preset=9)) / len(text)


def _windows(
    text: bytes, length: int, context: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of inputs and targets [B, T]; a target already scored, or past the end, is IGNORE."""
    tokens = torch.tensor([BOS, *text])
    rows = []
    for start in range(0, len(text), length - context):
        x, y = tokens[start : start + length], tokens[start + 1 : start + length + 1].clone()
        x = x[: len(y)]
        if start:
            y[:context] = IGNORE
        pad = length - len(y)
        rows.append(
            (
                torch.cat((x, torch.full((pad,), BOS))),
                torch.cat((y, torch.full((pad,), IGNORE))),
            )
        )
        if pad or start + length >= len(text):
            break
    for first in range(0, len(rows), batch_size):
        inputs, targets = zip(*rows[first : first + batch_size], strict=True)
        yield torch.stack(inputs), torch.stack(targets)
