"""Training memory by ZeRO stage: stacked bars, one category on the other.

| fill        | means           | luminance |
| ----------- | --------------- | --------- |
| PARAMETERS  | parameters      | 0.12      |
| OPTIMIZER   | optimizer state | 0.42      |
| GRADIENTS   | gradients       | 0.70      |
| ACTIVATIONS | activations     | 0.91      |
"""

from collections.abc import Mapping

from matplotlib.axes import Axes

from labkit.cost.memory import Recipe, TrainingMemory
from labkit.viz.style import INK, SMALL_WORD_SIZE, put_word, scaled_axes
from labkit.viz.words import bytes_in_words, word

PARAMETERS = "#0b2238"
GRADIENTS = "#a9c07f"
OPTIMIZER = "#b3541e"
ACTIVATIONS = "#e8e8e8"
PAPER_PARAMETERS, PAPER_RANKS = 7_500_000_000, 64  # figure 1 of arXiv 1910.02054
_PARTS = (
    ("memory.parameters", "parameter_bytes", PARAMETERS),
    ("memory.gradients", "gradient_bytes", GRADIENTS),
    ("memory.optimizer", "optimizer_bytes", OPTIMIZER),
    ("memory.activations", "activation_bytes", ACTIVATIONS),
)


def draw_training_memory(
    axes: Axes,
    stages: Mapping[int, TrainingMemory],
    *,
    top_bytes: float | None = None,
    budget_bytes: float | None = None,
    mark_paper: bool = False,
) -> Axes:
    """One bar a stage, its bytes stacked by category and their sum above it.

    Args:
        axes: drawn on, returned.
        stages: what one rank holds, by ZeRO stage, from stage 0 to the last.
        top_bytes: end of the axis, the same for all frames of a slider; else the tallest bar's.
        budget_bytes: memory of a device, drawn as a line.
        mark_paper: say that these bars are those of the paper's figure.
    """
    shown = [part for part in _PARTS if any(getattr(m, part[1]) for m in stages.values())]
    for place, memory in enumerate(stages.values()):
        below = 0.0
        for key, field, colour in shown:
            height = getattr(memory, field) / 1e9
            label = word(key) if place == 0 else None
            axes.bar(
                place, height, 0.7, below, color=colour, edgecolor=INK, linewidth=0.6, label=label
            )
            below += height
        put_word(axes, (place, below), bytes_in_words(memory.total_bytes), vertical="bottom")
    totals = [memory.total_bytes for memory in stages.values()]
    top = max(totals) if top_bytes is None else top_bytes
    if budget_bytes is not None:
        label = word("memory.budget", text=bytes_in_words(budget_bytes))
        axes.axhline(budget_bytes / 1e9, color=INK, linewidth=1.2, linestyle="--", label=label)
        top = max(top, budget_bytes)
    axes.set(ylim=(0, 1.12 * top / 1e9), xticks=range(len(stages)), xticklabels=[*map(str, stages)])
    axes.set_xlabel(word("axis.stage"))
    axes.set_ylabel(word("axis.gigabytes"))
    ends = {"first": bytes_in_words(totals[0]), "last": bytes_in_words(totals[-1])}
    title = word("memory.title", **ends)
    if mark_paper:
        texts = " / ".join(f"{total / 1e9:.1f}".removesuffix(".0") for total in totals)
        title = word("memory.paper", texts=word("unit.gigabytes", n=texts))
    axes.set_title(title)
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, loc="upper right")
    return scaled_axes(axes)


def is_papers_row(num_parameters: int, group_size: int, recipe: Recipe) -> bool:
    """Whether this is figure 1 of the ZeRO paper: 7.5 billion parameters, 64 ranks, 16 bits."""
    bytes_each = (recipe.parameter_bytes, recipe.gradient_bytes, recipe.optimizer_bytes)
    row = (PAPER_PARAMETERS, PAPER_RANKS, (2, 2, 12))
    return (num_parameters, group_size, bytes_each) == row


def training_memory_label(*, num_parameters: int, group_size: int, recipe: Recipe) -> str:
    """The setting of a frame, in one line."""
    ranks = word("memory.ranks", ranks=group_size) if group_size > 1 else word("memory.one_rank")
    return word(
        "memory.setting",
        parameters=f"{num_parameters:,}",
        ranks=ranks,
        recipe=word(f"memory.recipe_{recipe.name}"),
    )


def training_memory_alt(
    stages: Mapping[int, TrainingMemory], *, num_parameters: int, group_size: int, recipe: Recipe
) -> str:
    """The frame in words, for readers who do not see the picture."""
    setting = training_memory_label(
        num_parameters=num_parameters, group_size=group_size, recipe=recipe
    )
    told = []
    for stage, memory in stages.items():
        parts = ", ".join(
            word("memory.alt_part", name=word(key), text=bytes_in_words(getattr(memory, field)))
            for key, field, _ in _PARTS
            if getattr(memory, field)
        )
        total = bytes_in_words(memory.total_bytes)
        told.append(word("memory.alt_stage", stage=stage, total=total, parts=parts))
    return word("memory.alt", setting=setting, stages=". ".join(told))
