"""Three pictures of the years: models and a GPU's memory, training and a GPU's year, memory wall.

All values are those of labkit.cost.history; each title says the factors that are computed from what
is drawn. Hollow marks are models of which a token meets only a part.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labkit.cost.hardware import Device
from labkit.cost.history import (
    MEMORY_WALL,
    SECONDS_PER_YEAR,
    TRAINING_FORMAT,
    PublishedModel,
    gpu_before,
    gpu_years,
    gpus_to_hold,
    growth_in_two_years,
    record_holders,
)
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    PAPER,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import word

# Where a name stands beside its mark, in points: right and up. The rest: (5, 5).
NAME_PLACES = {
    **dict.fromkeys(("MT-NLG", "Turing-NLG", "GPT-3", "Llama 3 405B", "DeepSeek-V3"), (-6, 5)),
    "Megatron-LM": (-6, 0),
    **dict.fromkeys(("GPT-2", "LLaMA-65B", "T5-11B"), (6, -8)),
    "Gopher": (-6, -4),
    "Chinchilla": (-4, -19),
}
STATE_BYTES = 16  # a parameter: weights, gradients and Adam's state in mixed precision


def draw_parameters(axes: Axes, models: Sequence[PublishedModel], gpus: Sequence[Device]) -> Axes:
    """Bytes of each model's training state beside the memory of one GPU."""
    sizes = {model.name: STATE_BYTES * model.parameters / 1e9 for model in models}
    _draw_models(axes, models, sizes)
    steps = _newest(gpus, [gpu.memory_bytes / 1e9 for gpu in gpus])
    _draw_gpus(axes, steps, word("growth.memory"))
    axes.set_ylabel(word("axis.state_gigabytes"))
    axes.set_title(word("growth.parameters_title", **parameter_growth(models, gpus)))
    return _finished(axes)


def parameter_growth(models: Sequence[PublishedModel], gpus: Sequence[Device]) -> dict[str, str]:
    """What the title says: factors in two years, and the years of the models that set them."""
    held = record_holders(models)
    return {
        "models": f"{growth_in_two_years((m.date, m.parameters) for m in held):.0f}",
        "memory": f"{growth_in_two_years((g.year, g.memory_bytes) for g in gpus):.1f}",
        "first": f"{int(held[0].date)}",
        "last": f"{int(held[-1].date)}",
    }


def parameters_alt(models: Sequence[PublishedModel], gpus: Sequence[Device]) -> str:
    """The picture in words, for readers who do not see it."""
    told = "; ".join(
        word("growth.holds", name=m.name, n=f"{gpus_to_hold(m, STATE_BYTES):.2g}") for m in models
    )
    return word("growth.parameters_alt", told=told, **parameter_growth(models, gpus))


def draw_compute(axes: Axes, models: Sequence[PublishedModel], gpus: Sequence[Device]) -> Axes:
    """FLOPs of each training beside those of one GPU in a year at its peak."""
    known = _with_compute(models)
    _draw_models(axes, known, {model.name: _flops(model) for model in known})
    years = [gpu.flops_per_s(TRAINING_FORMAT) * SECONDS_PER_YEAR for gpu in gpus]
    _draw_gpus(axes, _newest(gpus, years), word("growth.year"))
    axes.set_ylabel(word("axis.training_flops"))
    largest = max(known, key=_flops)
    taken = f"{_gpu_years(largest):,.0f}"
    axes.set_title(word("growth.compute_title", name=largest.name, n=taken))
    return _finished(axes)


def compute_alt(models: Sequence[PublishedModel]) -> str:
    """The picture in words."""
    told = "; ".join(
        word("growth.took", name=m.name, n=f"{_gpu_years(m):.2g}", gpu=gpu_before(m.date).name)
        for m in _with_compute(models)
    )
    return word("growth.compute_alt", models=told)


def draw_memory_wall(axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]]) -> Axes:
    """GPUs relative to the first one, and straight lines with the paper's rates.

    Args:
        axes: drawn on, returned.
        series: for each key of MEMORY_WALL, (year, value) of every GPU.
    """
    start = min(year for year, _ in series["flops"])
    end = max(year for year, _ in series["flops"])
    colours = dict(zip(MEMORY_WALL, (COMPUTE, LINE_COLOURS[1], INK), strict=True))
    for (name, rate), mark, style in zip(MEMORY_WALL.items(), "osD", LINE_STYLES, strict=False):
        points = series[name]
        own = growth_in_two_years(points)
        label = word(f"growth.{name}", own=f"{own:.1f}", paper=f"{rate:.1f}")
        values = [value / points[0][1] for _, value in points]
        look: dict[str, Any] = {"color": colours[name]}
        axes.plot([year for year, _ in points], values, mark, label=label, **look)
        axes.plot(
            [start, end], [1, rate ** ((end - start) / 2)], linewidth=1.5, linestyle=style, **look
        )
    axes.set_ylabel(word("axis.relative_to_first"))
    axes.set_title(word("growth.wall_title", first=start, last=end, **wall_factors(series)))
    return _finished(axes)


def wall_factors(series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, str]:
    """How many times the first GPU the last one is."""
    return {name: f"{series[name][-1][1] / series[name][0][1]:.2g}" for name in MEMORY_WALL}


def memory_wall_alt(series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The picture in words."""
    told = "; ".join(
        word(f"growth.{name}", own=f"{growth_in_two_years(series[name]):.1f}", paper=f"{rate:.1f}")
        for name, rate in MEMORY_WALL.items()
    )
    years = {"first": series["flops"][0][0], "last": series["flops"][-1][0]}
    return word("growth.wall_alt", told=told, **years, **wall_factors(series))


def _draw_models(axes: Axes, models: Sequence[PublishedModel], values: Mapping[str, float]) -> None:
    for sparse, key in ((False, "growth.dense"), (True, "growth.sparse")):
        chosen = [model for model in models if model.is_sparse == sparse]
        face = PAPER if sparse else COMPUTE
        places = [model.date for model in chosen], [values[model.name] for model in chosen]
        look: dict[str, Any] = {"color": COMPUTE, "markerfacecolor": face, "markersize": 6}
        if chosen:
            axes.plot(*places, "o", label=word(key), **look)
    for model in models:
        right, up = NAME_PLACES.get(model.name, (5, 5))
        axes.annotate(
            model.name,
            (model.date, values[model.name]),
            xytext=(right, up),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            ha="right" if right < 0 else "left",
            va="center",
        )


def _draw_gpus(axes: Axes, steps: Sequence[tuple[float, float, str]], label: str) -> None:
    look: dict[str, Any] = {"color": COMMUNICATION, "markeredgecolor": INK, "markersize": 6}
    years, values, _ = zip(*steps, strict=True)
    axes.plot(years, values, "s-", drawstyle="steps-post", linewidth=2, label=label, **look)
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center"}
    for year, value, name in steps:
        axes.annotate(name, (year, value), xytext=(0, -11), fontsize=8.5, color=INK, **beside)


def _newest(gpus: Sequence[Device], values: Sequence[float]) -> list[tuple[float, float, str]]:
    """One GPU a year, the one with the most of what is drawn."""
    best: dict[int, tuple[float, float, str]] = {}
    for gpu, value in zip(gpus, values, strict=True):
        if gpu.year not in best or value > best[gpu.year][1]:
            best[gpu.year] = (gpu.year, value, gpu.name.partition("-")[0].upper())
    return [best[year] for year in sorted(best)]


def _with_compute(models: Sequence[PublishedModel]) -> list[PublishedModel]:
    return [model for model in models if model.training_flops is not None]


def _flops(model: PublishedModel) -> float:
    assert model.training_flops is not None, "chosen by _with_compute"
    return model.training_flops


def _gpu_years(model: PublishedModel) -> float:
    return gpu_years(_flops(model), gpu_before(model.date))


def _finished(axes: Axes) -> Axes:
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(word("axis.year"))
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.16), "ncols": 1}
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, **place)
    return scaled_axes(axes)
