"""What a search for a layout found: where a step's seconds go, and memory against step time.

| fill          | means                                     | luminance |
| ------------- | ----------------------------------------- | --------- |
| INK           | the optimizer's update                    | 0.13      |
| COMPUTE       | arithmetic and memory traffic of the rank | 0.31      |
| COMMUNICATION | exchanges that nothing hides              | 0.66      |
| IDLE          | the pipeline's bubble                     | 0.93      |

A set of axes (dp, pp, tp, cp, ep) is shown once, by its fastest layout. All seconds are predicted.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from labkit.cost.layout import Layout
from labkit.cost.ranking import Candidate, Ranking
from labkit.viz.choices import Setting, choices
from labkit.viz.frames import picture_html
from labkit.viz.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    PAPER,
    SMALL_WORD_SIZE,
    new_figure,
    scaled_axes,
    svg,
)
from labkit.viz.words import bytes_in_words, seconds_in_words, word

BARS = 5
PARTS = (
    ("plans.compute", "compute_s", COMPUTE),
    ("plans.optimizer", "optimizer_s", INK),
    ("plans.exposed", "exposed_s", COMMUNICATION),
    ("plans.bubble", "bubble_s", IDLE),
)

MEMORY = {
    "activations": ACTIVATIONS,
    "optimizer state": OPTIMIZER,
    "gradients": GRADIENTS,
    "parameters": PARAMETERS,
    "working memory": PAPER,
}


def fastest_by_axes(ranking: Ranking) -> list[Candidate]:
    """The fastest layout on each set of axes, in order."""
    found: dict[tuple[int, ...], Candidate] = {}
    for each in ranking.fitting:
        layout = each.layout
        axes = (layout.dp, layout.pp, layout.tp, layout.cp, layout.ep)
        found.setdefault(axes, each)
    return list(found.values())


def layout_in_words(layout: Layout) -> str:
    """The axes that are cut, ZeRO, and what is recomputed: "DP 8, PP 4, TP 8, ZeRO 1"."""
    sizes = {"DP": layout.dp, "PP": layout.pp, "TP": layout.tp, "CP": layout.cp, "EP": layout.ep}
    told = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    told += [f"ZeRO {layout.zero}"] if layout.zero else []
    if layout.recompute != "none":
        told.append(word(f"plans.recompute_{layout.recompute}"))
    return ", ".join(told) or word("plans.one_device")


def draw_step_parts(axes: Axes, ranking: Ranking, *, count: int = BARS) -> Axes:
    """Stacked bars: the seconds of a step of the fastest layouts, the best on top.

    Args:
        axes: drawn on, returned.
        ranking: in which something fits.
        count: bars at most.
    """
    shown = fastest_by_axes(ranking)[:count]
    for place, each in enumerate(shown):
        left = 0.0
        for key, field, colour in PARTS:
            seconds = getattr(each.step, field)
            label = word(key) if place == 0 else None
            axes.barh(
                *(place, seconds, 0.46, left),
                color=colour,
                edgecolor=INK,
                linewidth=0.6,
                label=label,
            )
            left += seconds
        needed = bytes_in_words(each.needed_bytes)
        told = word("plans.bar", layout=layout_in_words(each.layout), memory=needed)
        _tell(axes, place, told)
    longest = max(_total_s(each) for each in shown)
    axes.set(xlim=(0, longest * 1.02), ylim=(len(shown) - 0.6, -0.8), yticks=[])
    axes.set_xlabel(word("axis.predicted_seconds"))
    axes.set_title(_finding(ranking))
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.24), "ncols": 2}
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, **below)
    return scaled_axes(axes)


def draw_memory_against_time(axes: Axes, ranking: Ranking, *, device_bytes: int) -> Axes:
    """A point for each set of axes, by bytes and seconds of its fastest layout; the best ringed.

    Args:
        axes: drawn on, returned.
        ranking: in which something fits.
        device_bytes: all of a device's memory, beside the part that a layout may fill.
    """
    shown = fastest_by_axes(ranking)
    memory = [each.needed_bytes / 1e9 for each in shown]
    seconds = [_total_s(each) for each in shown]
    axes.plot(memory, seconds, "o", color=COMPUTE, markersize=4, markeredgecolor=PAPER)
    best = (memory[0], seconds[0])
    axes.plot(*best, "o", markersize=11, color=INK, fillstyle="none", markeredgewidth=2)
    for num_bytes, style, key in (
        (ranking.budget_bytes, "--", "plans.budget"),
        (device_bytes, "-", "plans.device"),
    ):
        label = word(key, text=bytes_in_words(num_bytes))
        axes.axvline(num_bytes / 1e9, color=INK, linewidth=1, linestyle=style, label=label)
    axes.set(xlim=(0, 1.04 * device_bytes / 1e9), yscale="log")
    for side in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        side(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(word("axis.gigabytes"))
    axes.set_ylabel(word("axis.predicted_seconds"))
    axes.set_title(_finding(ranking))
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.2), "ncols": 2}
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, **place)
    return scaled_axes(axes)


def draw_nearest_miss(axes: Axes, ranking: Ranking) -> Axes:
    """The bytes of the layout that lacks least, part after part, and the budget: nothing fits."""
    miss = ranking.nearest_miss
    assert miss is not None, "a ranking in which nothing fits has a nearest miss"
    left = 0.0
    for place, (part, num_bytes) in enumerate(miss.parts_bytes.items()):
        look: dict[str, Any] = {"color": MEMORY[part], "edgecolor": INK, "linewidth": 0.6}
        axes.barh([place], [num_bytes / 1e9], height=0.46, left=left, **look)
        left += num_bytes / 1e9
        told = word("plans.part", name=word(f"plans.{part}"), text=bytes_in_words(num_bytes))
        _tell(axes, place, told)
    axes.axvline(ranking.budget_bytes / 1e9, color=INK, linewidth=1.2, linestyle="--")
    axes.set(ylim=(len(miss.parts_bytes) - 0.6, -0.8), yticks=[], xlim=(0, 1.04 * left))
    axes.set_xlabel(word("axis.gigabytes"))
    axes.set_title(_finding(ranking))
    return scaled_axes(axes)


def _tell(axes: Axes, place: int, told: str) -> None:
    """Words above a bar."""
    look: dict[str, Any] = {"size": SMALL_WORD_SIZE, "color": INK, "va": "bottom"}
    axes.annotate(told, (0, place - 0.27), (3, 0), textcoords="offset points", **look)


def plan_label(ranking: Ranking, *, model: str, device: str) -> str:
    """The question, in one line."""
    tokens = f"{ranking.job.seq_len * ranking.job.batch_size:,}"
    return word(
        "plans.setting", model=model, devices=ranking.num_devices, device=device, tokens=tokens
    )


def plan_alt(ranking: Ranking, *, model: str, device: str, count: int = BARS) -> str:
    """The bars in words, for readers who do not see the picture."""
    told = []
    for each in fastest_by_axes(ranking)[:count]:
        parts = ", ".join(
            f"{word(key)} {seconds_in_words(getattr(each.step, field))}"
            for key, field, _ in PARTS
            if getattr(each.step, field) > 0
        )
        told.append(f"{layout_in_words(each.layout)}: {parts}")
    setting = plan_label(ranking, model=model, device=device)
    found = _finding(ranking).replace("\n", " ")
    return word("plans.alt", setting=setting, finding=found, bars=". ".join(told)).strip()


def plan_pane(ranking: Ranking, *, model: str, device: str) -> str:
    """HTML of one question's bars."""
    figure = new_figure(3.4)
    draw = draw_step_parts if ranking.best else draw_nearest_miss
    draw(figure.add_subplot(), ranking)
    data = base64.b64encode(svg(figure).encode()).decode()
    label = plan_label(ranking, model=model, device=device)
    alt = plan_alt(ranking, model=model, device=device)
    return picture_html(f"data:image/svg+xml;base64,{data}", label, alt)


def plan_explorer(
    models: Sequence[str],
    num_devices: Sequence[int],
    ranked: Callable[[str, int], Ranking],
    *,
    device: str,
) -> ipywidgets.VBox:
    """Choose a model and a number of devices, see the best layouts and where their seconds go.

    Args:
        models: names.
        num_devices: to choose from.
        ranked: answers for a model's name and a number of devices.
        device: their name.
    """

    def pane(model: str, count: int) -> str:
        return plan_pane(ranked(model, count), model=model, device=device)

    settings = [
        Setting(name=word("plans.model"), values=models, options=models),
        Setting(
            name=word("plans.devices"),
            values=num_devices,
            options=[f"{count:,}" for count in num_devices],
        ),
    ]
    return choices(settings, pane)


def _total_s(candidate: Candidate) -> float:
    assert candidate.step is not None, "only what fits is drawn"
    return candidate.step.total_s


def _finding(ranking: Ranking) -> str:
    best = ranking.best
    if best is None or best.step is None:
        miss = ranking.nearest_miss
        assert miss is not None, "a ranking in which nothing fits has a nearest miss"
        needed, budget = bytes_in_words(miss.needed_bytes), bytes_in_words(ranking.budget_bytes)
        layout = layout_in_words(miss.layout)
        return word("plans.nothing_fits", layout=layout, needed=needed, budget=budget)
    share = f"{100 * best.step.mfu:.0f} %"
    seconds = seconds_in_words(best.step.total_s)
    return word("plans.title", layout=layout_in_words(best.layout), mfu=share, seconds=seconds)
