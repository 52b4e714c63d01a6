"""What an answer costs: prefill, decode, and the batch that memory allows.

Prefill reads the prompt: 2 FLOPs a token and weight, and the scores. Decode writes one token of
each sequence in a step, and must read all weights and all caches for it:

    prefill = max(FLOPs / (t·peak),  weights / bandwidth)
    decode  = max(FLOPs / (t·peak),  (weights + B·S·kv) / bandwidth)
    batch   ≤ (memory − weights) / (S·kv)

on t tensor-parallel devices, with weights and kv the bytes of one of them. Each holds 1/t of the
weights; of K and V, weights and cache alike, it holds ⌈K/t⌉/K: above K heads they are replicated.
A latent cache is whole on every device. Norms and biases are counted as shared.

No communication, no launch overheads, no scheduling: these are lower bounds of seconds. A prompt's
logits are computed for its last token only. With experts, a step reads those that any of its tokens
needs: E·(1 − (1 − k/E)^tokens) of E, if each token's k are drawn evenly.

Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv 2211.05102, section 2.
Symbols: B sequences, S tokens of context, K KV heads, t ranks, E experts, k of them a token.
"""

from dataclasses import dataclass
from fractions import Fraction

from labkit.cost.architecture import Architecture
from labkit.cost.counting import (
    FORMAT_BITS,
    attention_flops,
    kv_bytes_per_token,
    layer_product_parameters,
    num_parameters,
    product_parameters,
)
from labkit.cost.hardware import Device


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A model on one device, or on `tp` of them.

    Args:
        weight_format: of the weights in memory.
        kv_format: of the cached keys and values.
        compute_format: of the products, which may be wider than that of the weights.
        compute_utilization: share of the peak that products reach; 1.0 is the bound.
        bandwidth_utilization: share of the memory's bandwidth that is reached.

    Raises:
        ValueError: for heads that tp does not divide, an unknown format, or a share over 1.
    """

    model: Architecture
    device: Device
    tp: int = 1
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    compute_format: str = "bf16"
    compute_utilization: float = 1.0
    bandwidth_utilization: float = 1.0

    def __post_init__(self) -> None:
        heads, kv_heads, tp = self.model.num_heads, self.model.num_kv_heads, self.tp
        if tp < 1 or heads % tp:
            raise ValueError(f"{heads} heads over tp={tp}")
        if kv_heads % tp and tp % kv_heads:
            raise ValueError(f"{kv_heads} KV heads over tp={tp}: one must divide the other")
        for number_format in (self.weight_format, self.kv_format):
            if number_format not in FORMAT_BITS:
                known = ", ".join(FORMAT_BITS)
                raise ValueError(f"no number format {number_format!r}; known are {known}")
        for share in (self.compute_utilization, self.bandwidth_utilization):
            if not 0 < share <= 1:
                raise ValueError(f"a utilization is above 0 and at most 1, got {share}")

    @property
    def kv_share(self) -> Fraction:
        """⌈K/t⌉/K: the share of one rank in keys and values; all of a latent."""
        if self.model.kv_latent_size:
            return Fraction(1)
        return Fraction(-(-self.model.num_kv_heads // self.tp), self.model.num_kv_heads)

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights that one rank holds."""
        return self._bytes(num_parameters(self.model))

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of cache that one rank holds of one token."""
        numbers = kv_bytes_per_token(self.model, 1)
        return float(numbers * self.kv_share * FORMAT_BITS[self.kv_format] / 8)

    def read_bytes(self, num_tokens: int) -> float:
        """Bytes of weights that one rank reads in a step of `num_tokens`; no embedding lookup."""
        return self._bytes(_products_read(self.model, num_tokens))

    def _bytes(self, weights: float) -> float:
        """One rank's share of so many weights of the model, K's and V's among them."""
        pair = 0 if self.model.kv_latent_size else 2 * self.model.num_kv_heads
        keys_values = self.model.num_layers * self.model.hidden_size * pair * self.model.head_dim
        share = (weights - keys_values) / self.tp + keys_values * float(self.kv_share)
        return share * FORMAT_BITS[self.weight_format] / 8

    def time_s(self, work_flops: float, read_bytes: float) -> float:
        """Seconds of one rank's step: the longer of its share of arithmetic and its reading."""
        peak = self.device.flops_per_s(self.compute_format) * self.compute_utilization
        bandwidth = self.device.bandwidth_bytes_per_s * self.bandwidth_utilization
        return max(work_flops / (self.tp * peak), read_bytes / bandwidth)


def prefill_flops(model: Architecture, prompt_len: int, batch_size: int = 1) -> int:
    """FLOPs to read prompts: all layers for every token, logits for the last."""
    num_tokens = batch_size * prompt_len
    output = 2 * model.hidden_size * model.vocab_size * batch_size
    layers = 2 * layer_product_parameters(model) * num_tokens
    return layers + output + attention_flops(model, num_tokens, prompt_len)


def decode_flops(model: Architecture, context_len: int, batch_size: int = 1) -> int:
    """FLOPs of one step: a token of each sequence, which sees `context_len`, itself among them.

    Latent attention works on the latent itself here, wider than a head: the matrices that would
    expand it are multiplied with the query and with the result instead.
    """
    products = 2 * product_parameters(model) * batch_size
    if not model.kv_latent_size:
        return products + attention_flops(model, batch_size, context_len, causal=False)
    widths = 2 * model.kv_latent_size - model.rope_key_size
    return products + 2 * batch_size * context_len * model.num_layers * model.num_heads * widths


def prefill_s(serving: Serving, prompt_len: int, batch_size: int = 1) -> float:
    """Seconds to read prompts, the time to first token without a queue."""
    work = prefill_flops(serving.model, prompt_len, batch_size)
    return serving.time_s(work, serving.read_bytes(batch_size * prompt_len))


def decode_step_s(serving: Serving, context_len: int, batch_size: int = 1) -> float:
    """Seconds of one decode step, in which each of `batch_size` sequences gets one token."""
    cache = batch_size * context_len * serving.kv_bytes_per_token
    work = decode_flops(serving.model, context_len, batch_size)
    return serving.time_s(work, serving.read_bytes(batch_size) + cache)


def decode_tokens_per_s(serving: Serving, context_len: int, batch_size: int = 1) -> float:
    """Tokens that all sequences together get in a second."""
    return batch_size / decode_step_s(serving, context_len, batch_size)


def prefill_tokens_per_s(serving: Serving, prompt_len: int, batch_size: int = 1) -> float:
    """Tokens of prompts read in a second."""
    return batch_size * prompt_len / prefill_s(serving, prompt_len, batch_size)


def largest_batch(serving: Serving, context_len: int, reserve_bytes: float = 0) -> int:
    """Sequences of `context_len` tokens whose caches fit beside the weights; 0 if not even one.

    Args:
        reserve_bytes: of each device, for activations and all else.

    Raises:
        ValueError: where the weights alone do not fit.
    """
    room = serving.device.memory_bytes - reserve_bytes - serving.weight_bytes
    if room < 0:
        raise ValueError(
            f"weights take {serving.weight_bytes / 1e9:.1f} GB a device at tp={serving.tp}, and "
            f"{serving.device.name} has {(serving.device.memory_bytes - reserve_bytes) / 1e9:.1f}: "
            "more devices, or a smaller number format"
        )
    return int(room // (context_len * serving.kv_bytes_per_token))


def _products_read(model: Architecture, num_tokens: int) -> float:
    """Weights that a step multiplies: of experts, those expected to be needed by some token."""
    weights = product_parameters(model)
    if not model.num_experts:
        return weights
    matrices = 3 if model.gated else 2
    expert = matrices * model.hidden_size * model.intermediate_size
    needed = model.num_experts * (1 - (1 - model.top_k / model.num_experts) ** num_tokens)
    sparse_layers = model.num_layers - model.num_dense_layers
    return weights + sparse_layers * (needed - model.top_k) * expert
