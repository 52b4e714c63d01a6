"""The roofline of a device, and on it the products of a layer in prefill and in decode.

Every frame is one batch size: the marks of decode move to the right with it, since a batch of B is
B rows in each product, while those of prefill, with B prompts, stand under the flat roof already.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets
from matplotlib.axes import Axes

from labkit.cost.architecture import Architecture
from labkit.cost.hardware import Device
from labkit.cost.roofline import (
    Placement,
    attainable_flops_per_s,
    place_model,
    ridge_flops_per_byte,
)
from labkit.viz.choices import Setting, choices
from labkit.viz.frames import picture_html
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    INK,
    SMALL_WORD_SIZE,
    new_figure,
    scaled_axes,
    svg,
)
from labkit.viz.words import word

INTENSITIES = (0.25, 16384.0)  # FLOP a byte: ends of the axis
LOOKS: dict[str, dict[str, Any]] = {
    "prefill": {"color": COMPUTE, "marker": "s"},
    "decode": {"color": COMMUNICATION, "marker": "o"},
}


def draw_roofline(
    axes: Axes,
    device: Device,
    placements: Mapping[str, Sequence[Placement]],
    number_format: str = "bf16",
) -> Axes:
    """The roof, its ridge, and the products under it.

    Args:
        axes: drawn on, returned.
        placements: for "prefill" and "decode", the products of a layer.
    """
    ridge = ridge_flops_per_byte(device, number_format)
    corners = (INTENSITIES[0], ridge, INTENSITIES[1])
    roof = [attainable_flops_per_s(device, each, number_format) / 1e12 for each in corners]
    axes.plot(corners, roof, color=INK, linewidth=2)
    axes.axvline(ridge, color=INK, linewidth=0.8, linestyle=":")
    for phase, placed in placements.items():
        look = LOOKS[phase] | {"markeredgecolor": INK, "markersize": 8, "linestyle": "none"}
        places = [each.intensity_flops_per_byte for each in placed]
        reached = [each.attainable_flops_per_s / 1e12 for each in placed]
        axes.plot(places, reached, label=word(f"roofline.{phase}"), **look)
    axes.set(xscale="log", yscale="log", xlim=INTENSITIES, ylim=(roof[0] / 2, 3 * roof[-1]))
    axes.set_xlabel(word("axis.intensity"))
    axes.set_ylabel(word("axis.tera_flops"))
    axes.set_title(word("roofline.title", **_told(device, placements, number_format)))
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, loc="lower right")
    return scaled_axes(axes)


def roofline_label(device: Device, *, model: str, batch_size: int, seq_len: int) -> str:
    """The setting of a frame, in one line."""
    sizes = {"batch": batch_size, "length": f"{seq_len:,}"}
    return word("roofline.setting", model=model, device=device.name, **sizes)


def roofline_alt(
    device: Device,
    placements: Mapping[str, Sequence[Placement]],
    setting: str,
    number_format: str = "bf16",
) -> str:
    """The frame in words, for readers who do not see it."""
    told = _told(device, placements, number_format)
    return word("roofline.alt", setting=setting, **told)


def roofline_explorer(
    models: Mapping[str, Architecture],
    devices: Sequence[Device],
    batch_sizes: Sequence[int],
    seq_len: int,
) -> ipywidgets.VBox:
    """A reader chooses model, device and batch size; every frame is drawn beforehand."""

    def pane(model: str, device: Device, batch_size: int) -> str:
        sizes: dict[str, Any] = {"batch_size": batch_size, "seq_len": seq_len}
        placements = {
            phase: place_model(models[model], device, phase=phase, **sizes) for phase in LOOKS
        }
        figure = new_figure(3.8)
        draw_roofline(figure.add_subplot(), device, placements)
        label = roofline_label(device, model=model, **sizes)
        data = base64.b64encode(svg(figure).encode()).decode()
        alt = roofline_alt(device, placements, label)
        return picture_html(f"data:image/svg+xml;base64,{data}", label, alt)

    names = list(models)
    return choices(
        [
            Setting(name=word("roofline.model"), values=names, options=names),
            Setting(
                name=word("roofline.device"),
                values=devices,
                options=[device.name for device in devices],
            ),
            Setting(
                name=word("roofline.batch"),
                values=batch_sizes,
                options=[str(size) for size in batch_sizes],
            ),
        ],
        pane,
    )


def _told(
    device: Device, placements: Mapping[str, Sequence[Placement]], number_format: str
) -> dict[str, str]:
    """The ridge, and the share of the peak that the slowest product of each phase can reach."""
    peak = device.flops_per_s(number_format)
    shares = {
        phase: min(each.attainable_flops_per_s for each in placements[phase]) / peak
        for phase in LOOKS
    }
    told = {phase: f"{100 * share:.3g}" for phase, share in shares.items()}
    return told | {"ridge": f"{ridge_flops_per_byte(device, number_format):.0f}"}
