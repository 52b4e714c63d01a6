"""The sizes that decide what a transformer costs, without a tensor, and those of known models.

Field names are those of labkit.model.config.ModelConfig, whose objects `Architecture.of` reads.
There is more here: the older GPT layer (two matrices in the MLP, biases, a table of positions),
experts, and the latents of multi-head latent attention.

Each entry of ARCHITECTURES stands under a comment with its source. "zero-7.5b" is a shape of this
course: the ZeRO paper's figure 1 needs 7.5 billion parameters and no shape, and labkit's own model,
Llama 2 7B with 36 layers for 32, has 7.548 billion.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer, by its sizes.

    Args:
        head_dim: of queries, keys and values; where keys and values come from a latent, without
            the rotary part.
        gated: SwiGLU's three matrices; otherwise an MLP has two.
        tied: the output projection is the embedding itself.
        biases: on every linear layer, and norms with a shift besides their gain (GPT-2, GPT-3).
        num_positions: rows of a learned table of positions; 0 where positions are rotary.
        num_experts: MLPs of `intermediate_size` in each layer; 0 for a dense layer.
        top_k: experts that a token goes through, those that all tokens share not counted.
        num_shared_experts: further MLPs of `intermediate_size` that every token goes through.
        num_dense_layers: layers, of all, that have one MLP of `dense_intermediate_size` instead.
        kv_latent_size: numbers a token and layer in the cache of latent attention, the rotary key
            included; 0 where keys and values are cached.
        rope_key_size: the rotary key, which all heads share; a part of `kv_latent_size`.
        q_latent_size: width through which queries are made in latent attention.
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
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    dense_intermediate_size: int = 0
    kv_latent_size: int = 0
    rope_key_size: int = 0
    q_latent_size: int = 0

    @classmethod
    def of(cls, config: Any) -> "Architecture":
        """From an object with the fields of ModelConfig."""
        names = (
            *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
            *("head_dim", "vocab_size", "tied", "qk_norm", "attention_bias"),
            *("num_experts", "top_k"),
        )
        return cls(**{name: getattr(config, name) for name in names})


def _llama(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int, **rest: Any
) -> Architecture:
    sizes = dict(head_dim=hidden // heads, vocab_size=vocab) | rest
    return Architecture(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        **sizes,
    )


def _gpt(layers: int, hidden: int, heads: int, vocab: int, positions: int) -> Architecture:
    """The layer of GPT-2: an MLP four times as wide as the stream, and biases everywhere."""
    return _llama(
        *(layers, hidden, 4 * hidden, heads, heads, vocab),
        gated=False,
        tied=True,
        biases=True,
        num_positions=positions,
    )


ARCHITECTURES: dict[str, Architecture] = {
    # labkit.model.config.PRESETS.
    "nano": _llama(4, 64, 176, 4, 2, 259),
    "mini": _llama(8, 256, 704, 8, 2, 259),
    "mini-mha": _llama(8, 256, 704, 8, 8, 259),
    "nano-moe": _llama(4, 64, 176, 4, 2, 259, num_experts=8, top_k=2),
    "mini-moe": _llama(8, 256, 704, 8, 2, 259, num_experts=8, top_k=2),
    # "The Llama 3 Herd of Models", arXiv 2407.21783, table 3, and each model's config.json.
    "llama3-8b": _llama(32, 4096, 14_336, 32, 8, 128_256),
    "llama3-70b": _llama(80, 8192, 28_672, 64, 8, 128_256),
    "llama3-405b": _llama(126, 16_384, 53_248, 128, 8, 128_256),
    # config.json of Qwen/Qwen3-4B.
    "qwen3-4b": _llama(*(36, 2560, 9728, 32, 8, 151_936), head_dim=128, tied=True, qk_norm=True),
    # This course's: Llama 2 7B's width (its config.json) at 36 layers for 32.
    "zero-7.5b": _llama(36, 4096, 11_008, 32, 32, 32_000),
    # "Language Models are Unsupervised Multitask Learners", table 2, and the released hparams.json.
    "gpt2-xl": _gpt(48, 1600, 25, 50_257, 1024),
    # "Language Models are Few-Shot Learners", arXiv 2005.14165, table 2.1; GPT-2's vocabulary.
    "gpt3-175b": _gpt(96, 12_288, 96, 50_257, 2048),
    # "Reducing Activation Recomputation", arXiv 2205.05198, section 6 and table 3.
    "megatron-22b": _gpt(48, 6144, 64, 51_200, 2048),
    "megatron-175b": _gpt(96, 12_288, 96, 51_200, 2048),
    "megatron-530b": _gpt(105, 20_480, 128, 51_200, 2048),
    "megatron-1t": _gpt(128, 25_600, 160, 51_200, 2048),
    # "Mixtral of Experts", arXiv 2401.04088, table 1.
    "mixtral-8x7b": _llama(32, 4096, 14_336, 32, 8, 32_000, num_experts=8, top_k=2),
    # "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 4.2, and its config.json; without
    # the module that predicts a second token.
    "deepseek-v3": _llama(
        *(61, 7168, 2048, 128, 128, 129_280),
        head_dim=128,
        num_experts=256,
        top_k=8,
        num_shared_experts=1,
        num_dense_layers=3,
        dense_intermediate_size=18_432,
        kv_latent_size=576,
        rope_key_size=64,
        q_latent_size=1536,
    ),
}


def architecture(name: str) -> Architecture:
    """A known model by its name.

    Raises:
        ValueError: for a name that is not in ARCHITECTURES.
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"no model {name!r}; known are {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[name]
