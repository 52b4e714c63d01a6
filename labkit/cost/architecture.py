"""The sizes that decide what a transformer costs, without a tensor.

Field names are those of labkit.model.config.ModelConfig, whose objects `Architecture.of` reads.
There is more here: the older GPT layer (two matrices in the MLP, biases, a table of positions),
experts, and the latent of multi-head latent attention.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer, by its sizes.

    Args:
        gated: SwiGLU's three matrices; otherwise an MLP has two.
        tied: the output projection is the embedding itself.
        biases: on every linear layer, and norms with a shift besides their gain (GPT-2, GPT-3).
        num_positions: rows of a learned table of positions; 0 where positions are rotary.
        num_experts: MLPs of `intermediate_size` in each layer; 0 for a dense layer.
        top_k: experts that a token goes through.
        kv_latent_size: numbers a token and layer in the cache of latent attention, the rotary key
            included; 0 where keys and values are cached.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated: bool = True
    tied: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    biases: bool = False
    num_positions: int = 0
    num_experts: int = 0
    top_k: int = 0
    kv_latent_size: int = 0

    @classmethod
    def of(cls, config: Any) -> "Architecture":
        """From an object with the fields of ModelConfig."""
        names = (
            *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
            *("head_dim", "vocab_size", "tied", "qk_norm", "attention_bias"),
        )
        return cls(**{name: getattr(config, name) for name in names})
