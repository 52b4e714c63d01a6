"""The shape of a model, and the shapes that the course names.

One decoder-only transformer of the Llama family: RMSNorm before each half of a layer, rotary
positions, grouped-query attention, SwiGLU or a mixture of such experts, no biases unless asked for.
Llama 2 and 3, Qwen3 and Mixtral are members; their published `config.json` is read by
`checkpoint.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretch of the rotary frequencies (its config.json and reference code).

    Frequencies whose wavelength passes `original_max_seq_len / low_freq_factor` are divided by
    `factor`, those under `original_max_seq_len / high_freq_factor` are kept, and the rest are
    interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides the shapes of a `Transformer`.

    Args:
        head_dim: width of one head; need not be hidden_size / num_heads (Qwen3).
        num_kv_heads: heads of K and V; each serves num_heads / num_kv_heads query heads.
        tied: the output projection is the embedding itself.
        qk_norm: RMSNorm on every head of Q and K before the rotation (Qwen3).
        attention_bias: biases on the four attention projections.
        num_experts: MLPs of `intermediate_size` in each layer, behind a router; 0 for a dense one.
        top_k: experts that a token goes through.
        balancing: routers hold a bias that keeps the load even (labkit/model/moe.py).

    Raises:
        ValueError: for sizes that do not fit together.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_seq_len: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    num_experts: int = 0
    top_k: int = 0
    balancing: bool = False

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads do not divide over {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions turn pairs")
        for name in ("num_layers", "hidden_size", "intermediate_size", "vocab_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_experts == 0 and (self.top_k or self.balancing):
            raise ValueError(
                f"top_k {self.top_k} and balancing {self.balancing} with num_experts 0: a dense "
                "layer has no router; give num_experts, or leave both out"
            )
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k {self.top_k} of {self.num_experts} experts: choose 1 to {self.num_experts}"
            )


def _config(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **rest):
    shape = dict(head_dim=hidden // heads, vocab_size=259, max_seq_len=512) | rest
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        **shape,
    )


_LLAMA3 = dict(vocab_size=128_256, max_seq_len=8192, rope_theta=500_000.0)
_LLAMA31 = _LLAMA3 | dict(
    max_seq_len=131_072,
    rope_scaling=RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192
    ),
)

PRESETS: dict[str, ModelConfig] = {
    # The course's own, on bytes: 256 values and three specials.
    "nano": _config(4, 64, 176, 4, 2),
    "mini": _config(8, 256, 704, 8, 2),
    "mini-mha": _config(8, 256, 704, 8, 8),
    # The same with eight experts in the place of each MLP; two of them work on a token.
    "nano-moe": _config(4, 64, 176, 4, 2, num_experts=8, top_k=2, balancing=True),
    "mini-moe": _config(8, 256, 704, 8, 2, num_experts=8, top_k=2, balancing=True),
    # Published shapes, from each model's config.json.
    "llama3-8b": _config(32, 4096, 14_336, 32, 8, **_LLAMA3),
    "llama3-70b": _config(80, 8192, 28_672, 64, 8, **_LLAMA3),
    "llama3-405b": _config(126, 16_384, 53_248, 128, 8, **_LLAMA31),
    "mixtral-8x7b": _config(
        *(32, 4096, 14_336, 32, 8),
        vocab_size=32_000,
        max_seq_len=32_768,
        rope_theta=1_000_000.0,
        num_experts=8,
        top_k=2,
    ),
    "qwen3-4b": _config(
        *(36, 2560, 9728, 32, 8),
        head_dim=128,
        vocab_size=151_936,
        max_seq_len=40_960,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        tied=True,
        qk_norm=True,
    ),
}
