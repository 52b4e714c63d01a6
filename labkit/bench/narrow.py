"""Narrow matrices: a product done in tp pieces, one after the other, over the same product whole.

    python -m labkit bench narrow

Same FLOPs, one core, the matrices of an MLP of `mini` and a batch of 512 tokens. A ratio of 1 would
mean that a piece takes its share of the time; what is above 1 is lost to smaller matrices alone,
before anything is sent.

Shapes: n tokens, D width, F hidden width.
"""

from typing import Any

import torch
from torch.nn.functional import linear

from labkit.bench.stats import Ratio, compare
from labkit.model.config import PRESETS, ModelConfig

NUM_TOKENS, PAIRS = 512, 100
PIECES = (2, 4, 8, 16, 32)


def main() -> dict[str, Any]:
    """Print and return the ratios, by columns (up) and by rows (down)."""
    config = PRESETS["mini"]
    result: dict[str, Any] = {"model": "mini", "num_tokens": NUM_TOKENS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for pieces in PIECES:
            result[f"columns_{pieces}"] = vars(_columns(config, pieces))
            result[f"rows_{pieces}"] = vars(_rows(config, pieces))
    finally:
        torch.set_num_threads(threads)
    return result


def _columns(config: ModelConfig, pieces: int) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_TOKENS, config.hidden_size, generator=generator)  # [n, D]
    up = torch.randn(config.intermediate_size, config.hidden_size, generator=generator)  # [F, D]
    shards = [shard.clone() for shard in up.chunk(pieces)]  # [F/tp, D] each

    def in_pieces() -> None:
        for shard in shards:
            linear(x, shard)

    return compare(
        f"{pieces} pieces by columns / whole", in_pieces, lambda: linear(x, up), pairs=PAIRS
    )


def _rows(config: ModelConfig, pieces: int) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, config.intermediate_size, generator=generator)  # [n, F]
    down = torch.randn(config.hidden_size, config.intermediate_size, generator=generator)  # [D, F]
    inputs = [part.contiguous() for part in hidden.chunk(pieces, 1)]  # [n, F/tp] each
    shards = [shard.contiguous() for shard in down.chunk(pieces, 1)]  # [D, F/tp] each

    def in_pieces() -> None:
        for part, shard in zip(inputs, shards, strict=True):
            linear(part, shard)

    return compare(
        f"{pieces} pieces by rows / whole", in_pieces, lambda: linear(hidden, down), pairs=PAIRS
    )
