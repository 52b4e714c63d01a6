"""The course's model on one process: the oracle for everything that runs on several.

    x = embed(tokens)
    x += attention(norm(x)),  x += mlp(norm(x))      for each layer; the MLP may be a mixture
    logits = head(norm(x))

Parameter names are those of published Llama checkpoints without the prefix "model.", so that a
checkpoint needs no translation.

Shapes: B batch, T sequence, D width, V words.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from labkit.model.attention import Attention, KVCache
from labkit.model.config import ModelConfig
from labkit.model.layers import RMSNorm, SwiGLU, rope_frequencies, rope_table
from labkit.model.moe import MoE

IGNORE = -100  # a target that is not scored, the value that torch's cross_entropy skips


class Block(nn.Module):
    """One decoder layer: attention, then MLP, each added to the stream that it read."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = _mlp(config)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)  # [B, T, D]
        return x + self.mlp(self.post_attention_layernorm(x))  # [B, T, D]


def _mlp(config: ModelConfig) -> nn.Module:
    if not config.num_experts:
        return SwiGLU(config.hidden_size, config.intermediate_size)
    return MoE(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_experts=config.num_experts,
        top_k=config.top_k,
        balancing=config.balancing,
    )


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        """Logits [B, T, V] for tokens [B, T], which continue those in the cache.

        Raises:
            ValueError: if the tokens pass the model's longest sequence.
        """
        start = 0 if cache is None else cache.length
        end = start + tokens.shape[1]
        if end > self.config.max_seq_len:
            raise ValueError(f"{end} tokens, but max_seq_len is {self.config.max_seq_len}")
        x = self.embed_tokens(tokens)  # [B, T, D]
        positions = torch.arange(start, end, device=tokens.device)
        frequencies = rope_frequencies(self.config).to(tokens.device)
        cos, sin = rope_table(positions, frequencies, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)  # [B, T, D]
        return self.logits(self.norm(x))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Project normed activations [B, T, D] on the vocabulary [B, T, V]."""
        return linear(x, self.embed_tokens.weight if self.config.tied else self.lm_head.weight)


def initialise(model: Transformer, generator: torch.Generator) -> None:
    """Fill the weights in place: std 0.02, and 0.02 / sqrt(2 L) where a layer adds to the stream.

    The scaled projections keep the stream's variance from growing with depth (GPT-2 report, section
    2.3). Norm gains are 1 and biases 0, as they are built.
    """
    into_stream = 0.02 / (2 * model.config.num_layers) ** 0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            std = into_stream if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            with torch.no_grad():
                parameter.normal_(0.0, std, generator=generator)


def next_token_loss(
    logits: torch.Tensor, targets: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """Cross-entropy in nats of logits [B, T, V] against targets [B, T], without those of IGNORE."""
    return cross_entropy(
        logits.flatten(0, 1).float() if logits.dtype != torch.float64 else logits.flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction=reduction,
    )
