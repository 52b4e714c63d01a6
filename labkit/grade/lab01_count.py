"""Lab 01: the checks of the five counts.

Each answer is asked about configs that the learner does not see, and compared with what the model
has, computes or keeps (lab01_measured.py). A wrong number is compared with what a mistake would
give: most are the measured number of another config, say one with as many KV heads as heads.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isclose
from typing import Any

import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab01_measured import (
    Question,
    cache_numbers,
    forward_flops,
    layer_bytes,
    num_parameters,
    questions,
)
from labkit.model.config import ModelConfig

GIB, GB, MIB = 2**30, 10**9, 2**20
CLOSE = 1e-9  # relative; every one of these numbers is exact but those in GiB
# Weights, gradients, fp32 weights, two moments: mixed precision with Adam (arXiv 1910.02054, 3.1).
STATE_BYTES = 2 + 2 + 4 + 4 + 4
FP32_BYTES = 4
Causes = dict[str, Any]  # a number, a set of numbers, or None where the mistake shows nothing


def answer_all(group: dist.ProcessGroup, learner: Callable, asked: Sequence[tuple]) -> list[Any]:
    """On one rank: the learner's answer to every question."""
    return [learner(*question) for question in asked]


def check_num_parameters(learner: Learner) -> Iterator[str]:
    """The instantiated model's parameters."""
    asked = questions()
    answers = learner.run(answer_all, 1, [(q.config,) for q in asked])[0]
    for q, got in zip(asked, answers, strict=True):
        told = {"question": q}
        _close("lab01.num_parameters", got, num_parameters(q.config), parameter_causes(q), told)
    yield from ("layers", "heads", "tied", "norms", "biases", "published")


def parameter_causes(q: Question) -> Causes:
    """What mistakes would give for the parameters."""
    c, expected = q.config, num_parameters(q.config)
    table = c.vocab_size * c.hidden_size
    return {
        **_other_configs(num_parameters, c),
        "tied_twice": expected + table if c.tied else None,
        "one_table": None if c.tied else expected - table,
        "tables": expected - table * (1 if c.tied else 2),
        "two_matrices": expected - c.num_layers * c.hidden_size * c.intermediate_size,
        "norms": expected - c.hidden_size * (2 * c.num_layers + 1),
        "last_norm": expected - c.hidden_size if c.num_layers > 1 else None,
        # with biases, that is O's
        "one_norm": None if c.attention_bias else expected - c.hidden_size * c.num_layers,
        "layer": _of_one_layer(c),
    }


def check_forward_flops(learner: Learner) -> Iterator[str]:
    """What torch's counter sees."""
    asked = questions()
    answers = learner.run(answer_all, 1, [(q.config, q.batch_size, q.seq_len) for q in asked])[0]
    for q, got in zip(asked, answers, strict=True):
        expected = forward_flops(q.config, q.batch_size, q.seq_len)
        _close("lab01.forward_flops", got, expected, flop_causes(q), {"question": q})
    yield from ("products", "attention", "heads", "batch", "published")


def flop_causes(q: Question) -> Causes:
    """What mistakes would give for the FLOPs."""
    c, B, T = q.config, q.batch_size, q.seq_len
    expected = forward_flops(c, B, T)
    scores = 4 * c.num_layers * B * c.num_heads * c.head_dim * T * T
    table = 2 * B * T * c.vocab_size * c.hidden_size
    weights = 2 * B * T * num_parameters(c)
    one_matrix = 2 * B * T * c.num_layers * c.hidden_size * c.intermediate_size
    return {
        "no_two": expected / 2,
        "causal": expected - scores * (T - 1) / (2 * T),
        "half_attention": expected - scores / 2,
        "no_attention": expected - scores,
        "no_batch": expected / B,
        "batch_squared": expected + (B - 1) * scores,
        "one_token": {expected / (B * T), expected / T},
        "training": {3 * expected, 3 * weights},
        "table": expected + table,
        "all_parameters": {weights, weights + scores},
        "no_head": expected - table,
        "two_matrices": expected - one_matrix,
        **_other_configs(lambda other: forward_flops(other, B, T), c),
    }


def check_activation_bytes(learner: Learner) -> Iterator[str]:
    """What autograd saves of one layer."""
    asked = questions(plain=True)
    answers = learner.run(answer_all, 1, [(q.config, q.batch_size, q.seq_len) for q in asked])[0]
    for q, got in zip(asked, answers, strict=True):
        expected = layer_bytes(q.config, q.batch_size, q.seq_len)
        _close("lab01.activation_bytes", got, expected, activation_causes(q), {"question": q})
    yield from ("one_layer", "heads", "batch", "small")


def activation_causes(q: Question) -> Causes:
    """What mistakes would give for the bytes of a layer."""
    c, B, T = q.config, q.batch_size, q.seq_len
    expected, tables = layer_bytes(c, B, T), FP32_BYTES * T * c.head_dim
    number_a_token = FP32_BYTES * B * T
    stream, rows = number_a_token * c.hidden_size, number_a_token * c.num_heads
    return {
        **_other_configs(lambda other: layer_bytes(other, B, T), c),
        "elements": expected / FP32_BYTES,
        "bf16": expected / 2,
        "no_batch": {layer_bytes(c, 1, T), expected / B},
        "layers": {c.num_layers * expected, c.num_layers * (expected - tables) + tables},
        "weights": expected + FP32_BYTES * _of_one_layer(c),
        "scores": {expected + rows * T, expected + rows * (T - 1)},
        "tables": {expected - tables, expected - tables / 2, expected + tables},
        "tables_a_sequence": expected + (B - 1) * tables,
        "mlp": {expected - number_a_token * c.intermediate_size * k for k in (1, 2, 3)},
        "norms": {*(expected - stream * k for k in (1, 2, 3, 4)), expected - 2 * number_a_token},
        "rows": expected - rows,
        "copy": {expected - rows * c.head_dim * k for k in (1, 2)},
    }


def check_kv_bytes(learner: Learner) -> Iterator[str]:
    """What a filled cache holds."""
    asked = [(q, number_bytes) for q in questions() for number_bytes in (1, 4, 2)]
    told = [(q.config, q.batch_size, q.seq_len, number_bytes) for q, number_bytes in asked]
    answers = learner.run(answer_all, 1, told)[0]
    for (q, number_bytes), got in zip(asked, answers, strict=True):
        expected = number_bytes * cache_numbers(q.config, q.batch_size, q.seq_len)
        shown = {"question": q, "number_bytes": number_bytes}
        _close("lab01.kv_bytes", got, expected, cache_causes(q, number_bytes), shown)
    yield from ("heads", "batch", "formats", "published")


def cache_causes(q: Question, number_bytes: int) -> Causes:
    """What mistakes would give for the bytes of a cache."""
    c, B, T = q.config, q.batch_size, q.seq_len
    numbers = cache_numbers(c, B, T)
    expected = number_bytes * numbers
    return {
        "mha": number_bytes * cache_numbers(replace(c, num_kv_heads=c.num_heads), B, T),
        "divided": expected * (c.hidden_size // c.num_heads) / c.head_dim,
        "whole_width": expected * c.hidden_size / (c.num_kv_heads * c.head_dim),
        "keys_alone": expected / 2,
        "layer": expected / c.num_layers,
        "no_batch": expected / B,
        "no_tokens": {expected / T, expected / (B * T)},
        "one_head": expected / c.num_kv_heads,
        "elements": numbers,
        "two_bytes": {2 * numbers, 4 * numbers},
        "bits": expected * 8,
        "unit": {expected / unit for unit in (GB, GIB, MIB)},
    }


def check_state_gib(learner: Learner) -> Iterator[str]:
    """Weights, gradients and optimizer state in GiB."""
    asked = questions()
    answers = learner.run(answer_all, 1, [(q.config,) for q in asked])[0]
    for q, got in zip(asked, answers, strict=True):
        expected = STATE_BYTES * num_parameters(q.config) / GIB
        _close("lab01.state_gib", got, expected, state_causes(q), {"question": q})
    yield from ("unit", "bytes", "published")


def state_causes(q: Question) -> Causes:
    """What mistakes would give for the state."""
    n = num_parameters(q.config)
    part, more = (2, 4, 6, 8, 10, 12, 14), (18, 20, 24)
    other = [count for count in _other_configs(num_parameters, q.config).values() if count]
    return {
        "gigabytes": STATE_BYTES * n / GB,
        "bytes": {STATE_BYTES * n, STATE_BYTES * n / MIB},
        "part": {k * n / GIB for k in part},
        "more": {k * n / GIB for k in more},
        "part_gigabytes": {k * n / GB for k in part},
        "more_gigabytes": {k * n / GB for k in more},
        "count": {STATE_BYTES * count / GIB for count in other},
        "count_gigabytes": {STATE_BYTES * count / GB for count in other},
    }


def _other_configs(count: Callable[[ModelConfig], int], c: ModelConfig) -> Causes:
    """What is counted of configs that a learner may have had in mind; None where it is the same."""
    changes: dict[str, dict[str, Any]] = {
        "mha": {"num_kv_heads": c.num_heads},
        "divided": {"head_dim": c.hidden_size // c.num_heads},
        "qk_norm": {"qk_norm": False},
        "biases": {"attention_bias": False},
    }
    found = {}
    for name, change in changes.items():
        other = replace(c, **change)
        found[name] = count(other) if other != c else None
    return found


def _of_one_layer(c: ModelConfig) -> int:
    """Parameters of a layer, the difference that one layer more makes."""
    return num_parameters(replace(c, num_layers=c.num_layers + 1)) - num_parameters(c)


def _close(key: str, got: Any, expected: float, causes: Causes, told: dict[str, Any]) -> None:
    """Equal but for rounding; the key's end is the likeliest mistake."""
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise CheckFailed("run.type", expected="a number", got=type(got).__name__)

    def near(value: Any) -> bool:
        values = value if isinstance(value, set) else {value}
        return any(v is not None and isclose(got, v, rel_tol=CLOSE) for v in values)

    if not near(expected):
        cause = next((name for name, value in causes.items() if near(value)), "values")
        raise CheckFailed(
            f"{key}.{cause}", expected=shown_number(expected), got=shown_number(got), **told
        )


def shown_number(number: float) -> str:
    """With all digits where it is whole, else six of them."""
    whole = number == number and abs(number) < 1e18 and number == int(number)
    return f"{int(number):,}" if whole else f"{number:.6g}"
