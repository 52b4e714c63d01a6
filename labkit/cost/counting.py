"""What a model holds and computes: parameters, FLOPs, bytes of weights and of cached keys.

A product of a token with a matrix of P weights is 2P FLOPs: a multiplication and an addition each.
So a forward pass is 2 FLOPs a token and weight *in a product*. An embedding is looked up, and norms
and biases are a rounding error: none of them is counted. A tied embedding is counted once, for it
is the output's matrix. Attention multiplies activations, and costs s tokens of context besides:

| FLOPs a token and layer          | every pair of tokens | causal   |
| -------------------------------- | -------------------- | -------- |
| scores, and their sum of values  | 4·s·H·d              | 2·s·H·d  |
| forward and backward             | 12·s·H·d             | 6·s·H·d  |

Causal is the half, as papers count it; the diagonal is left out. Backward is twice the forward: one
product for the input's gradient and one for the weight's. Recomputation runs forward again: all
layers, or only the attention core, which is then a third of what it costs in training. (Korthikanti
et al.'s equation for it adds three thirds, forward and backward: 1 + s/6D times the model FLOPs.)
`6N` a token counts the embedding too, and no attention.

Sources: Kaplan et al., arXiv 2001.08361, section 2.1; Chowdhery et al., arXiv 2204.02311, appendix
B; Narayanan et al., arXiv 2104.04473, section 5.1 and appendix, for the GPT layer's sum.

Symbols: L layers, D width, F hidden width, H heads, K KV heads, d head width, V vocabulary, s
tokens a sequence.
"""

from labkit.cost.activations import RECOMPUTE
from labkit.cost.architecture import Architecture

# Bits a number; scales and zero points of quantised formats come on top.
FORMAT_BITS = dict(fp32=32, fp16=16, bf16=16, fp8=8, int8=8, fp4=4, int4=4)


def attention_parameters(model: Architecture, products_only: bool = False) -> int:
    """Weights of one layer's attention; biases and the norms of Q and K unless `products_only`."""
    D, d, rope = model.hidden_size, model.head_dim, model.rope_key_size
    heads, kv_heads = model.num_heads * d, model.num_kv_heads * d
    if model.kv_latent_size:
        latent = model.kv_latent_size - rope
        queries = model.q_latent_size * (D + heads + model.num_heads * rope)
        products = queries + D * model.kv_latent_size + latent * 2 * heads + heads * D
        return products if products_only else products + model.q_latent_size + latent
    products = D * (2 * heads + 2 * kv_heads)
    if products_only:
        return products
    biases = heads + 2 * kv_heads + D if model.attention_bias or model.biases else 0
    return products + biases + (2 * d if model.qk_norm else 0)


def layer_parameters(model: Architecture, layer: int = -1) -> int:
    """Weights of one layer, norms included; by default of the last."""
    D = model.hidden_size
    norms = 2 * D * (2 if model.biases else 1)
    return attention_parameters(model) + norms + _mlps(model, layer, every_expert=True)


def num_parameters(model: Architecture) -> int:
    """All weights, embeddings included: what the instantiated model has."""
    D, V = model.hidden_size, model.vocab_size
    tables = D * (V if model.tied else 2 * V) + D * model.num_positions
    norm = D * (2 if model.biases else 1)
    return tables + norm + sum(layer_parameters(model, i) for i in range(model.num_layers))


def active_parameters(model: Architecture) -> int:
    """Weights that serve one token: all but the experts it does not go through."""
    layers = range(model.num_layers)
    idle = sum(_mlps(model, i, every_expert=True) - _mlps(model, i) for i in layers)
    return num_parameters(model) - idle


def product_parameters(model: Architecture) -> int:
    """Weights that one token is multiplied with: no lookup, no norm, no bias, no idle expert."""
    return layer_product_parameters(model) + model.hidden_size * model.vocab_size


def layer_product_parameters(model: Architecture) -> int:
    """The same without the output projection: the sum over all layers."""
    attention = attention_parameters(model, products_only=True)
    first, last = (_mlps(model, i, products_only=True) for i in (0, model.num_layers - 1))
    like_first = model.num_dense_layers if model.num_experts else model.num_layers
    mlps = like_first * first + (model.num_layers - like_first) * last
    return model.num_layers * attention + mlps


def attention_flops(model: Architecture, num_tokens: int, seq_len: int, causal: bool = True) -> int:
    """FLOPs of scores and of their sum of values, forward, over all layers.

    Args:
        num_tokens: of the whole batch.
        seq_len: tokens that each of them could see: the sequence, s.
        causal: only half of the pairs.
    """
    widths = model.num_heads * (2 * model.head_dim + model.rope_key_size)  # a pair's: K and V
    pairs_flops = 2 * num_tokens * seq_len * model.num_layers * widths
    return pairs_flops // 2 if causal else pairs_flops


def forward_flops(model: Architecture, num_tokens: int, seq_len: int, causal: bool = True) -> int:
    """FLOPs of one forward pass of `num_tokens`, in sequences of `seq_len`, logits included."""
    products = 2 * product_parameters(model) * num_tokens
    return products + attention_flops(model, num_tokens, seq_len, causal)


def training_flops(
    model: Architecture,
    num_tokens: int,
    seq_len: int,
    causal: bool = True,
    recompute: str = "none",
) -> int:
    """FLOPs of forward and backward; with "none", the model FLOPs that MFU is defined by.

    Args:
        recompute: what backward runs again: "none"; "selective", the attention core; or "full",
            every layer, but not the output projection.

    Raises:
        ValueError: for another word in `recompute`.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute {recompute!r} is not one of {RECOMPUTE}")
    again = 0
    if recompute != "none":
        again = attention_flops(model, num_tokens, seq_len, causal)
    if recompute == "full":
        again += 2 * layer_product_parameters(model) * num_tokens
    return 3 * forward_flops(model, num_tokens, seq_len, causal) + again


def training_flops_per_token(model: Architecture, seq_len: int = 0, causal: bool = True) -> int:
    """Model FLOPs of a token, forward and backward; a seq_len of 0 leaves attention out."""
    return training_flops(model, 1, seq_len, causal)


def kv_bytes_per_token(model: Architecture, number_bytes: int = 2) -> int:
    """Bytes of cache a token, over all layers: 2·K·d numbers a layer, or the latent."""
    numbers = model.kv_latent_size or 2 * model.num_kv_heads * model.head_dim
    return model.num_layers * numbers * number_bytes


def weight_bytes(num_parameters: int, number_format: str) -> int:
    """Bytes of so many weights in a format.

    Raises:
        ValueError: for a format that is not in FORMAT_BITS.
    """
    if number_format not in FORMAT_BITS:
        known = ", ".join(FORMAT_BITS)
        raise ValueError(f"no number format {number_format!r}; known are {known}")
    return -(-num_parameters * FORMAT_BITS[number_format] // 8)


def model_bytes(model: Architecture, number_format: str) -> int:
    """Bytes of all weights in a format."""
    return weight_bytes(num_parameters(model), number_format)


def _mlps(
    model: Architecture, layer: int, every_expert: bool = False, products_only: bool = False
) -> int:
    """Weights of a layer's MLP; or of its router and experts, those of one token or all."""
    D = model.hidden_size
    biases = model.biases and not products_only

    def mlp(F: int) -> int:
        return (3 if model.gated else 2) * D * F + (F + D if biases else 0)

    if not model.num_experts:
        return mlp(model.intermediate_size)
    if layer % model.num_layers < model.num_dense_layers:
        return mlp(model.dense_intermediate_size)
    experts = model.num_shared_experts + (model.num_experts if every_expert else model.top_k)
    return D * model.num_experts + experts * mlp(model.intermediate_size)
