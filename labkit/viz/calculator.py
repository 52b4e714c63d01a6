"""A memory calculator: what one rank holds in training, beside the memory of one device.

A frame has five bars, for the stages of ZeRO and for stage 3 with full recomputation, in the
colours of `labkit.viz.memory`. All numbers are those of labkit.cost.layout_memory: the states
between two steps, and what one micro-batch keeps for backward. A recipe is put together from a
precision and an optimizer:

| bytes a parameter   | fp32           | mixed              |
| ------------------- | -------------- | ------------------ |
| weights, gradients  | 4 + 4          | 2 + 2              |
| copy of the weights | –              | 4                  |
| optimizer           | AdamW 8, momentum 4, 8-bit AdamW 2 (arXiv 2110.02861) |

The SVG is written by hand, so that a page can carry hundreds of frames.
"""

from collections.abc import Mapping, Sequence

import ipywidgets

from labkit.cost.architecture import Architecture
from labkit.cost.hardware import Device
from labkit.cost.layout import Layout
from labkit.cost.layout_memory import layout_memory
from labkit.cost.memory import Recipe, TrainingMemory
from labkit.viz.choices import Setting, choices
from labkit.viz.frames import picture_html
from labkit.viz.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS
from labkit.viz.schedule_svg import address
from labkit.viz.style import INK
from labkit.viz.words import word

OPTIMIZER_BYTES = {"adamw": 8, "momentum": 4, "adamw8": 2}
PRECISIONS = {"mixed": (2, 4), "fp32": (4, 0)}  # bytes of a weight, and of its copy in fp32
ROWS = (*((zero, "none") for zero in range(4)), (3, "full"))
BATCHES = ((1, 4096), (1, 8192), (4, 8192))  # sequences and their tokens
PARTS = (
    ("parameter_bytes", "parameters", PARAMETERS),
    ("gradient_bytes", "gradients", GRADIENTS),
    ("optimizer_bytes", "optimizer", OPTIMIZER),
    ("activation_bytes", "activations", ACTIVATIONS),
)
LEFT, RIGHT, WIDTH, TOP, ROW, BAR = 238, 120, 800, 66, 50, 34  # units of the picture


def recipe_of(precision: str, optimizer: str) -> Recipe:
    """Bytes a parameter of a precision with an optimizer.

    Raises:
        ValueError: for a name that is not in PRECISIONS or OPTIMIZER_BYTES.
    """
    for name, known in ((precision, PRECISIONS), (optimizer, OPTIMIZER_BYTES)):
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
    weight, copy = PRECISIONS[precision]
    return Recipe(
        name=precision,
        parameter_bytes=weight,
        gradient_bytes=weight,
        optimizer_bytes=copy + OPTIMIZER_BYTES[optimizer],
    )


def held_by_row(
    model: Architecture, recipe: Recipe, num_ranks: int, batch: tuple[int, int]
) -> dict[tuple[int, str], TrainingMemory]:
    """What one of `num_ranks` holds, for each (ZeRO stage, recomputation) of ROWS."""
    sequences, seq_len = batch
    return {
        (zero, recompute): layout_memory(
            model,
            Layout(dp=num_ranks, zero=zero, recompute=recompute, micro_batch_size=sequences),
            seq_len=seq_len,
            recipe=recipe,
        )
        for zero, recompute in ROWS
    }


def bars_svg(held: Mapping[tuple[int, str], TrainingMemory], device: Device) -> str:
    """Five stacked bars, their sums, and a line at the device's memory."""
    budget = device.memory_bytes
    scale = (WIDTH - LEFT - RIGHT) / max(budget, *(each.total_bytes for each in held.values()))
    line, bottom = LEFT + scale * budget, TOP + ROW * len(held)
    dash = f'stroke="{INK}" stroke-width="3" stroke-dasharray="9 6"'
    parts, words = [_legend()], []
    for place, (row, memory) in enumerate(held.items()):
        y, x = TOP + ROW * place, float(LEFT)
        words.append(_text(LEFT - 12, y + 24, _row_name(row), "end"))
        for field, _, colour in PARTS:
            wide = scale * getattr(memory, field)
            if wide >= 0.5:
                parts.append(f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" {_fill(colour)}/>')
            x += wide
        weight = "bold" if memory.total_bytes <= budget else "normal"
        words.append(_text(WIDTH, y + 24, in_gigabytes(memory.total_bytes), "end", weight))
    parts.append(f'<path d="M{line:.0f} {TOP - 12}V{bottom}" {dash}/>')
    told = word("calculator.budget", device=device.name, text=in_gigabytes(budget))
    words.append(_text(max(LEFT, min(line, WIDTH - 130)), bottom + 26, told, "middle"))
    size = f'viewBox="0 0 {WIDTH} {bottom + 38}" width="{WIDTH}" height="{bottom + 38}"'
    font = 'font-family="sans-serif" font-size="24"'
    drawn = "".join(parts + words)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{drawn}</svg>'


def calculator_label(
    held: Mapping[tuple[int, str], TrainingMemory], device: Device, setting: str
) -> str:
    """The setting of a frame, and which of its rows fit."""
    fitting = [row for row, each in held.items() if each.total_bytes <= device.memory_bytes]
    names = ", ".join(_row_name(row) for row in fitting)
    key = "calculator.fits" if fitting else "calculator.fits_not"
    verdict = word(key, device=device.name, rows=names)
    return f"{setting}. {verdict}"


def calculator_alt(held: Mapping[tuple[int, str], TrainingMemory], label: str) -> str:
    """The frame in words, for readers who do not see it."""
    told = "; ".join(
        word(
            "calculator.alt_row",
            row=_row_name(row),
            total=in_gigabytes(memory.total_bytes),
            activations=in_gigabytes(memory.activation_bytes),
        )
        for row, memory in held.items()
    )
    return word("calculator.alt", label=label, told=told)


def memory_calculator(
    models: Mapping[str, Architecture], device: Device, ranks: Sequence[int] = (1, 8, 64, 512)
) -> ipywidgets.VBox:
    """A reader chooses model, precision, optimizer, ranks and batch; all frames are made before."""

    def pane(
        model: str, precision: str, optimizer: str, batch: tuple[int, int], num_ranks: int
    ) -> str:
        held = held_by_row(models[model], recipe_of(precision, optimizer), num_ranks, batch)
        setting = word(
            "calculator.setting",
            model=model,
            precision=word(f"calculator.{precision}"),
            optimizer=word(f"calculator.{optimizer}"),
            ranks=word("memory.ranks" if num_ranks > 1 else "memory.one_rank", ranks=num_ranks),
            batch=_batch_name(batch),
        )
        label = calculator_label(held, device, setting)
        return picture_html(address(bars_svg(held, device)), label, calculator_alt(held, label))

    names = list(models)
    return choices(
        [
            Setting(name=word("calculator.model"), values=names, options=names),
            _named("calculator.precision", list(PRECISIONS)),
            _named("calculator.optimizer_name", list(OPTIMIZER_BYTES)),
            Setting(
                name=word("calculator.batch"),
                values=BATCHES,
                options=[_batch_name(batch) for batch in BATCHES],
                first=1,
            ),
            Setting(
                name=word("calculator.ranks"),
                values=ranks,
                options=[str(n) for n in ranks],
                first=len(ranks) // 2,
            ),
        ],
        pane,
    )


def in_gigabytes(num_bytes: float) -> str:
    """GB with three significant digits and no exponent: "1,129 GB", "35.4 GB"."""
    gigabytes = num_bytes / 1e9
    return word("unit.gigabytes", n=f"{gigabytes:,.0f}" if gigabytes >= 100 else f"{gigabytes:.3g}")


def _named(name: str, values: Sequence[str]) -> Setting:
    options = [word(f"calculator.{value}") for value in values]
    return Setting(name=word(name), values=values, options=options)


def _batch_name(batch: tuple[int, int]) -> str:
    return word("calculator.sequences", n=batch[0], length=f"{batch[1]:,}")


def _row_name(row: tuple[int, str]) -> str:
    zero, recompute = row
    key = "calculator.row" if recompute == "none" else "calculator.row_recomputed"
    return word(key, stage=zero)


def _legend() -> str:
    parts, x = [], 0
    for _, name, colour in PARTS:
        parts.append(f'<rect x="{x}" y="4" width="24" {_fill(colour, 24)}/>')
        text = word(f"memory.{name}")
        parts.append(_text(x + 30, 24, text))
        x += 50 + 12 * len(text)
    return "".join(parts)


def _fill(colour: str, height: int = BAR) -> str:
    return f'height="{height}" fill="{colour}" stroke="{INK}"'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    extra = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (
        "" if weight == "normal" else f' font-weight="{weight}"'
    )
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{INK}"{extra}>{text}</text>'
