"""Lab 01: what a model really has, computes and keeps, and the configs that are asked about.

Nothing here is a formula. Parameters are those of the instantiated model. FLOPs are what torch's
counter sees in a forward pass, both on the meta device, where a tensor has a shape and no numbers.
What a layer keeps is what autograd saved of a forward pass on the CPU, and a cache is one that a
model has filled.
"""

import random
from dataclasses import dataclass, replace
from functools import cache

import torch

from labkit.measure.events import Compute
from labkit.measure.log import EventLog
from labkit.measure.memory import SavedActivations
from labkit.model.attention import KVCache
from labkit.model.config import PRESETS, ModelConfig
from labkit.model.layers import rope_frequencies, rope_table
from labkit.model.transformer import Block, Transformer

SEED = 10
FLAGS = ("tied", "qk_norm", "attention_bias")
SHOWN = (
    *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
    *("head_dim", "vocab_size"),
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A config and a batch of it: B sequences of T tokens."""

    config: ModelConfig
    batch_size: int
    seq_len: int
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            told = f"the preset {self.name}"
        else:
            sizes = [f"{name}={getattr(self.config, name)}" for name in SHOWN]
            told = ", ".join(sizes + [f"{name}=True" for name in FLAGS if self.flag(name)])
        return f"{told}; {self.batch_size} sequences of {self.seq_len} tokens"

    def flag(self, name: str) -> bool:
        """Whether the config has one of FLAGS."""
        return bool(getattr(self.config, name))


def questions(plain: bool = False) -> list[Question]:
    """Random configs, from the simplest to the most special.

    Args:
        plain: no norms of queries and keys, and two further batches in place of published shapes.
    """
    rng = random.Random(SEED)
    first = _config(rng)
    configs = [first, _config(rng), replace(first, tied=True), replace(first, attention_bias=True)]
    if not plain:
        configs += [replace(first, qk_norm=True), replace(_config(rng), tied=True, qk_norm=True)]
    configs += [replace(_config(rng), num_layers=1, num_kv_heads=1)]
    found = [
        Question(config=config, batch_size=5 + 2 * (i % 2), seq_len=rng.randrange(9, 40))
        for i, config in enumerate(configs)
    ]
    found.append(replace(found[0], batch_size=1, seq_len=2))
    if not plain:
        for name, batch_size, seq_len in (("llama3-8b", 2, 4096), ("qwen3-4b", 1, 1000)):
            shape = {"batch_size": batch_size, "seq_len": seq_len}
            found.append(Question(config=PRESETS[name], name=name, **shape))
    return [*found, found[0]]  # the first again, for an answer that remembers something


def _config(rng: random.Random) -> ModelConfig:
    """Sizes and ratios that differ, so that a wrong number tells where it comes from.

    Heads are narrower than hidden_size / num_heads, which is even, as a head must be.
    """
    heads, head_dim = 3 * rng.randrange(3, 5), 4 * rng.randrange(2, 5)
    hidden = heads * (head_dim + rng.choice((2, 10)))
    return ModelConfig(
        num_layers=rng.choice((6, 7)),
        hidden_size=hidden,
        intermediate_size=hidden + rng.randrange(31, 71),
        num_heads=heads,
        num_kv_heads=3,
        head_dim=head_dim,
        vocab_size=rng.randrange(80, 200),
        max_seq_len=4096,
    )


@cache
def _model(config: ModelConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


def num_parameters(config: ModelConfig) -> int:
    """Of the instantiated model; a tensor with two names counts once."""
    return sum(parameter.numel() for parameter in _model(config).parameters())


@cache
def forward_flops(config: ModelConfig, batch_size: int, seq_len: int) -> int:
    """What torch's counter sees in a forward pass."""
    with torch.device("meta"):
        tokens = torch.zeros(batch_size, seq_len, dtype=torch.long)
    with EventLog() as log, torch.no_grad():
        _model(config)(tokens)
    return round(sum(event.flops for event in log.events if isinstance(event, Compute)))


@cache
def layer_bytes(config: ModelConfig, batch_size: int, seq_len: int) -> int:
    """What autograd saves of one layer's forward pass in fp32, the layer's weights left out."""
    block = Block(config, 0)
    x = torch.ones(batch_size, seq_len, config.hidden_size, requires_grad=True)  # [B, T, D]
    cos, sin = rope_table(torch.arange(seq_len), rope_frequencies(config), torch.float32)
    with SavedActivations(block) as saved:
        block(x, cos, sin)
    return saved.bytes


@cache
def cache_numbers(config: ModelConfig, batch_size: int, seq_len: int) -> int:
    """Numbers in the cache of a model that has read a batch."""
    held = KVCache(config.num_layers)
    with torch.device("meta"), torch.no_grad():
        _model(config)(torch.zeros(batch_size, seq_len, dtype=torch.long), held)
    tensors = [*held.keys, *held.values]
    return sum(tensor.numel() for tensor in tensors if tensor is not None)
