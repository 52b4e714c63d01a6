"""Predicted and measured steps of published runs, beside the best that a constant could do.

    error = predicted seconds / measured seconds − 1

Three rows were fitted, one each for three constants: the A100's share of its peak, the rate of
ZeRO-3's exchanges on it, and the H100's share. They are named in FITTED and count nowhere. `fit`
finds the constants again.

The best constant is the efficiency c that, for all rows of a table, makes the largest error least:
with rates from r to R it is 2rR/(r + R), and errs by (R − r)/(R + r). It is fitted on every row.

Where the model falls short: where exchange is all that counts, ZeRO-3's runs of 175B are predicted
8 to 9 % too fast, for the fitted rate is that of 530B. The largest models of "recomputation" are
predicted 9 to 10 % too slow, the interleaved ones of "megatron-weak-scaling", a year older, up to
8 % too fast: one constant serves two years of a program. Of Llama 3's rows two are left, on which
alone the best constant errs by 2.6 %, less than the model.

And what it cannot tell apart: a fitted share absorbs much. A model without bubbles or without tp's
exchanges, fitted anew, stays within every row's 15 % and fails the ratios or a 10 % only.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from labkit.cost.assumptions import ASSUMPTIONS, TABLES
from labkit.cost.efficiency import EFFICIENCY, Efficiency
from labkit.cost.layer_time import layer_time
from labkit.cost.published import LAYER_22B, Run
from labkit.cost.published_llama import RUNS
from labkit.cost.software import ZERO3_FITTED_ON
from labkit.cost.step_time import StepTime, step_time

__all__ = [
    "ASSUMPTIONS",
    "FITTED",
    "TABLES",
    "Fit",
    "Residual",
    "best_constant_error",
    "fit",
    "largest_error",
    "layer_residuals",
    "predicted",
    "recompute_ratios",
    "residual_table",
    "residuals",
    "row",
    "zero3_ratios",
]

WAYS = ("forward", "backward")
FITTED = (*(each.fitted_on for each in EFFICIENCY.values()), ZERO3_FITTED_ON)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """One row, or a ratio of two.

    Args:
        measured: seconds, or a ratio of seconds.
        fitted: a constant was fitted on it, so it proves nothing.
    """

    name: str
    measured: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The fitted constants."""

    a100_peak_share: float
    zero3_bytes_per_s: float
    h100_peak_share: float


def row(name: str) -> Run:
    """The published run of a name such as "recomputation: 175B full".

    Raises:
        ValueError: for a name that no run has.
    """
    found = [run for run in RUNS if f"{run.table}: {run.name}" == name]
    if not found:
        known = ", ".join(f"{run.table}: {run.name}" for run in RUNS)
        raise ValueError(f"no published run {name!r}; known are {known}")
    return found[0]


def predicted(run: Run, law: Efficiency | None = None) -> StepTime:
    """A published run by the model."""
    return step_time(run.model, run.layout, run.cluster, run.seq_len, run.software, law)


def residuals(table: str) -> tuple[Residual, ...]:
    """Every row of a table, in its order.

    Raises:
        ValueError: for a table that is not in TABLES.
    """
    return tuple(
        Residual(
            name=run.name,
            measured=run.measured_s,
            predicted=predicted(run).total_s,
            fitted=f"{run.table}: {run.name}" in FITTED,
        )
        for run in _runs(table)
    )


def largest_error(rows: tuple[Residual, ...]) -> float:
    """Of the rows that count, without its sign."""
    return max(abs(each.error) for each in rows if not each.fitted)


def best_constant_error(table: str) -> float:
    """The largest error of the constant efficiency whose largest error is least, over all rows."""
    rates = [run.measured_flops_per_s for run in _runs(table)]
    return (max(rates) - min(rates)) / (max(rates) + min(rates))


def recompute_ratios() -> tuple[Residual, ...]:
    """Full against selective recomputation with sequence parallelism, seconds over seconds."""
    names = [f"recomputation: {size}" for size in ("22B", "175B", "530B", "1T")]
    return tuple(_ratio(f"{each} full", f"{each} selective") for each in names)


def zero3_ratios() -> tuple[Residual, ...]:
    """ZeRO-3 with the same batch on more GPUs: 2 and 4 times as many for 175B, 2 for 530B."""
    table = "zero3-and-3d: ZeRO-3"
    pairs = (("175B", 768, 384), ("175B", 1536, 384), ("530B", 2240, 1120))
    return tuple(
        _ratio(f"{table} {size} on {more}", f"{table} {size} on {fewer}")
        for size, more, fewer in pairs
    )


def layer_residuals() -> tuple[Residual, ...]:
    """One layer of 22B, forward and backward in seconds, five ways; exchanges included."""
    run, rows = row("recomputation: 22B full"), []
    for recompute, sequence_parallel, *milliseconds in LAYER_22B:
        sizes = dict(recompute=recompute, sequence_parallel=sequence_parallel)
        layout = replace(run.layout, **sizes)  # type: ignore[arg-type]
        layer = layer_time(replace(predicted(run).work, layout=layout))
        forward_s = layer.forward_s + layer.tp_s / (3 if recompute == "full" else 2)
        both_s = (forward_s, layer.forward_s + layer.backward_s + layer.tp_s - forward_s)
        name = recompute + (" with SP" if sequence_parallel else "")
        for way, seconds, measured in zip(WAYS, both_s, milliseconds, strict=True):
            rows.append(
                Residual(name=f"{name}, {way}", measured=measured / 1000, predicted=seconds)
            )
    return tuple(rows)


def fit() -> Fit:
    """The three constants, each solved for on its row: seconds fall as any of them rises."""
    compute_row, llama_row, exchange_row = (row(name) for name in FITTED)
    a100 = _solve(lambda a: _with_share(compute_row, a), compute_row.measured_s, 0.3, 1.0)
    h100 = _solve(lambda a: _with_share(llama_row, a), llama_row.measured_s, 0.3, 1.0)

    def with_rate(bytes_per_s: float) -> float:
        software = replace(exchange_row.software, gather_bytes_per_s=bytes_per_s)
        return _with_share(replace(exchange_row, software=software), a100)

    rate = _solve(with_rate, exchange_row.measured_s, 1e9, 25e9)
    return Fit(a100_peak_share=a100, zero3_bytes_per_s=rate, h100_peak_share=h100)


def residual_table(rows: tuple[Residual, ...], unit: str = "s") -> str:
    """Plain text: a line a row, then the largest error."""
    width = max(len(each.name) for each in rows)
    lines = [
        f"{each.name:<{width}}  measured {each.measured:8.2f} {unit}  predicted "
        f"{each.predicted:8.2f} {unit}  {each.error:+6.1%}{'  fitted' if each.fitted else ''}"
        for each in rows
    ]
    return "\n".join([*lines, f"largest error {largest_error(rows):.1%}"])


def _runs(table: str) -> list[Run]:
    if table not in TABLES:
        raise ValueError(f"no table {table!r}; known are {', '.join(TABLES)}")
    return [run for run in RUNS if run.table == table]


def _ratio(over: str, under: str) -> Residual:
    runs = row(over), row(under)
    seconds = [predicted(run).total_s for run in runs]
    return Residual(
        name=f"{over} / {under}",
        measured=runs[0].measured_s / runs[1].measured_s,
        predicted=seconds[0] / seconds[1],
    )


def _with_share(run: Run, peak_share: float) -> float:
    return predicted(run, Efficiency(peak_share=peak_share)).total_s


def _solve(seconds: Callable[[float], float], goal_s: float, low: float, high: float) -> float:
    """By halving: seconds fall from `low` to `high`."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) > goal_s else (low, middle)
    return (low + high) / 2
