"""Lab 01: the checks of the roofline: where a product of prefill or decode stands.

The oracle is the product itself: labkit's event log counts its FLOPs on the meta device, and its
bytes are those of its three tensors. Times are exact fractions: bytes over bandwidth, FLOPs over
the peak. A product is as fast as the slower of the two, and the bound is the one that decides.

The least number of rows is found by trying one after the other.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from fractions import Fraction
from math import ceil, isclose
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab01_count import answer_all, shown_number
from labkit.measure.events import Compute
from labkit.measure.log import EventLog

CLOSE = 1e-9  # relative
MOST_ROWS = 5000  # beyond the answer of every case that has one
PARTS = ("moved_bytes", "intensity", "flops_per_s", "bound")


@dataclass(frozen=True, kw_only=True)
class Product:
    """A weight of [inputs, outputs] and the tokens that meet it, on a device."""

    batch_size: int
    num_tokens: int
    inputs: int
    outputs: int
    number_bytes: int
    peak: int
    bandwidth: int

    def __str__(self) -> str:
        phase = "prefill" if self.num_tokens > 1 else "decode"
        return (
            f"{phase}, {self.batch_size} sequences of {self.num_tokens} new tokens, weight "
            f"[{self.inputs}, {self.outputs}], {self.number_bytes} bytes a number, peak "
            f"{self.peak:.4g} FLOP/s, bandwidth {self.bandwidth:.4g} B/s"
        )


def _product(batch_size: int, num_tokens: int, inputs: int, outputs: int, *rest: int) -> Product:
    number_bytes, peak, bandwidth = rest
    return Product(
        batch_size=batch_size,
        num_tokens=num_tokens,
        inputs=inputs,
        outputs=outputs,
        number_bytes=number_bytes,
        peak=peak,
        bandwidth=bandwidth,
    )


FAST = (989_000_000_000_000, 3_350_000_000_000)  # about 295 FLOPs a byte at the ridge
SLOW = (50_000_000_000, 40_000_000_000)  # 1.25: a processor's
PRODUCTS = (
    _product(3, 1, 4096, 14_336, 2, *FAST),
    _product(2, 1024, 4096, 14_336, 2, *FAST),
    _product(48, 1, 1000, 300, 4, *FAST),
    _product(1, 700, 128, 4096, 2, *FAST),  # many rows, and yet too narrow
    _product(5, 1, 640, 200, 1, *SLOW),
    _product(1, 1, 64, 64, 2, *SLOW),
    _product(2, 32, 64, 64, 2, 64 * 10**9, 3 * 10**9),  # on the ridge, 64/3: both limits at once
    _product(300, 1, 8192, 8192, 2, *FAST),
)
# (inputs, outputs, bytes a number, peak, bandwidth)
WEIGHTS = (
    (4096, 14_336, 2, *FAST),
    (4096, 4096, 1, *FAST),
    (1000, 3000, 4, *FAST),
    (256, 512, 2, *FAST),  # never
    (64, 64, 2, 16 * 10**9, 10**9),  # 32 rows, exactly
    (300, 200, 2, *SLOW),
    (128, 128, 2, 64 * 10**9, 10**9),  # never, and only just
    (8192, 1024, 2, *FAST),
    (40, 5000, 2, 30 * 10**9, 10**9),
)


def exact(product: Product) -> dict[str, Any]:
    """Bytes, intensity, attainable FLOP/s as fractions, and the bound."""
    p = product
    with torch.device("meta"), EventLog() as log:
        x = torch.empty(p.batch_size * p.num_tokens, p.inputs)
        weight = torch.empty(p.inputs, p.outputs)
        y = x @ weight
    flops = sum(round(event.flops) for event in log.events if isinstance(event, Compute))
    moved = p.number_bytes * sum(tensor.numel() for tensor in (x, weight, y))
    memory_s, compute_s = Fraction(moved, p.bandwidth), Fraction(flops, p.peak)
    return {
        "moved_bytes": moved,
        "intensity": Fraction(flops, moved),
        "flops_per_s": flops / max(memory_s, compute_s),
        "bound": "memory" if memory_s > compute_s else "compute",
    }


def check_roofline(learner: Learner) -> Iterator[str]:
    """Bytes, intensity, attainable FLOP/s and bound of every product."""
    asked = [*PRODUCTS, PRODUCTS[0]]
    answers = learner.run(answer_all, 1, [astuple(p) for p in asked])[0]
    for product, got in zip(asked, answers, strict=True):
        expected, told = exact(product), {"product": product}
        if not isinstance(got, dict) or set(got) != set(PARTS):
            kind = sorted(got) if isinstance(got, dict) else type(got).__name__
            raise CheckFailed("lab01.roofline.form", got=kind)
        causes = _causes(product, expected)
        for part in PARTS[:-1]:
            _near(f"lab01.roofline.{part}", got[part], expected[part], causes[part], told)
        if got["bound"] != expected["bound"]:
            shown = {"expected": expected["bound"], "got": got["bound"]}
            intensity = f"{float(expected['intensity']):.6g}"
            ridge = f"{product.peak / product.bandwidth:.6g}"
            shown |= {"intensity": intensity, "ridge": ridge}
            raise CheckFailed("lab01.roofline.bound", **shown, **told)
    yield from ("bytes", "intensity", "attainable", "bound")


def _causes(p: Product, expected: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By part, what a mistake would give."""
    s, rows, weight = p.number_bytes, p.batch_size * p.num_tokens, p.inputs * p.outputs
    moved, intensity = expected["moved_bytes"], expected["intensity"]
    without_batch = s * (p.num_tokens * (p.inputs + p.outputs) + weight)
    slope, peak = intensity * p.bandwidth, Fraction(p.peak)
    return {
        "moved_bytes": {
            "no_output": moved - s * rows * p.outputs,
            "weight_alone": s * weight,
            "activations_alone": moved - s * weight,
            "output_twice": moved + s * rows * p.outputs,
            "elements": Fraction(moved, s),
            "bits": moved * 8,
            "weight_a_sequence": moved + (p.batch_size - 1) * s * weight,
            "no_batch": without_batch,
            "two_bytes": Fraction(2 * moved, s),
        },
        "intensity": {
            "inverted": 1 / intensity,
            "half": intensity / 2,
            "numbers": intensity * s,
            "no_batch": intensity / p.batch_size,
        },
        "flops_per_s": {
            "smaller_alone": slope,
            "peak_alone": peak,
            "bandwidth": Fraction(p.bandwidth),
            "inverted": min(peak, p.bandwidth / intensity),
        },
    }


def check_rows_needed(learner: Learner) -> Iterator[str]:
    """The least number of rows, or None."""
    asked = [*WEIGHTS, WEIGHTS[0]]
    answers = learner.run(answer_all, 1, asked)[0]
    for (inputs, outputs, number_bytes, peak, bandwidth), got in zip(asked, answers, strict=True):
        rest = (inputs, outputs, number_bytes, peak, bandwidth)
        expected = least_rows(*rest)
        told = {
            "weight": [inputs, outputs],
            "number_bytes": number_bytes,
            "ridge": f"{peak / bandwidth:.6g}",
            "expected": expected,
            "got": got,
        }
        whole = type(got) is int or (isinstance(got, float) and got.is_integer())
        if got is not None and not whole:
            raise CheckFailed("lab01.rows_needed.form", **told)
        if got == expected:
            continue
        if expected is None:
            raise CheckFailed("lab01.rows_needed.none", **told)
        for cause, value in _row_causes(expected, *rest).items():
            if got == value:
                raise CheckFailed(f"lab01.rows_needed.{cause}", **told)
        raise CheckFailed("lab01.rows_needed.values", **told)
    yield from ("decode", "formats", "exact", "never")


def least_rows(
    inputs: int, outputs: int, number_bytes: int, peak: int, bandwidth: int
) -> int | None:
    """The first number of rows, counted up, at which bytes no longer decide."""
    for rows in range(1, MOST_ROWS + 1):
        moved = number_bytes * (rows * inputs + inputs * outputs + rows * outputs)
        if 2 * rows * inputs * outputs * bandwidth >= moved * peak:
            return rows
    return None


def _row_causes(
    expected: int, inputs: int, outputs: int, number_bytes: int, peak: int, bandwidth: int
) -> dict[str, Any]:
    """What a mistake would give."""
    ridge = Fraction(peak, bandwidth)
    inputs_alone = 2 * outputs - ridge * number_bytes
    by_cause: dict[str, Any] = {
        "never": None,
        "one_less": expected - 1,
        "one_more": expected + 1,
        "weight_alone": ceil(ridge * number_bytes / 2),
        "elements": least_rows(inputs, outputs, 1, peak, bandwidth),
    }
    if inputs_alone > 0:
        by_cause["no_output"] = ceil(ridge * number_bytes * outputs / inputs_alone)
    return by_cause


def _near(key: str, got: Any, expected: Any, causes: dict[str, Any], told: dict[str, Any]) -> None:
    """Equal but for rounding; the key's end is the likeliest mistake."""
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise CheckFailed("run.type", expected="a number", got=type(got).__name__)
    if not isclose(got, expected, rel_tol=CLOSE):
        cause = next((n for n, v in causes.items() if isclose(got, v, rel_tol=CLOSE)), "values")
        shown = {"expected": shown_number(float(expected)), "got": shown_number(got)}
        raise CheckFailed(f"{key}.{cause}", **shown, **told)
