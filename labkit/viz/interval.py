"""Choose a world, a save and how much of it is hidden; see goodput against the interval."""

from collections.abc import Sequence

import ipywidgets

from labkit.cost.goodput import FailureCosts, world_between_failures_s
from labkit.viz.choices import Setting, choices
from labkit.viz.frames import picture_html
from labkit.viz.goodput import draw_goodput, goodput_alt
from labkit.viz.schedule_svg import address
from labkit.viz.style import new_figure, svg
from labkit.viz.words import seconds_in_words, word

ENDS_S = (60.0, 4 * 3600.0)


def interval_pane(costs: FailureCosts, num_devices: int) -> str:
    """HTML of one curve.

    Args:
        costs: of the whole world.
        num_devices: for the line under the picture.
    """
    figure, ends_s = new_figure(2.9), (max(ENDS_S[0], 1.01 * costs.hidden_s), ENDS_S[1])
    draw_goodput(figure.add_subplot(), costs, ends_s=ends_s)
    label = word(
        "interval.label",
        devices=f"{num_devices:,}",
        save=seconds_in_words(costs.save_s),
        blocking=seconds_in_words(costs.blocking_s),
        restart=seconds_in_words(costs.restart_s),
    )
    return picture_html(address(svg(figure)), label, goodput_alt(costs, ends_s))


def interval_explorer(
    num_devices: Sequence[int],
    saves_s: Sequence[float],
    hidden: Sequence[float],
    *,
    device_s: float,
    restart_s: float,
) -> ipywidgets.VBox:
    """The curve for each choice of three settings.

    Args:
        num_devices: to choose from, as are the next two.
        saves_s: seconds of a save.
        hidden: shares of a save behind which work goes on, under 1.
        device_s: between failures of one device.
        restart_s: from a failure until work goes on.
    """

    def pane(count: int, save_s: float, share: float) -> str:
        between_s = world_between_failures_s(device_s, count)
        costs = FailureCosts(
            between_failures_s=between_s, save_s=save_s, restart_s=restart_s, hidden=share
        )
        return interval_pane(costs, count)

    settings = [
        Setting(
            name=word("interval.setting_devices"),
            values=num_devices,
            options=[f"{count:,}" for count in num_devices],
        ),
        Setting(
            name=word("interval.setting_save"),
            values=saves_s,
            options=[seconds_in_words(each) for each in saves_s],
        ),
        Setting(
            name=word("interval.setting_hidden"),
            values=hidden,
            options=[f"{100 * each:g} %" for each in hidden],
        ),
    ]
    return choices(settings, pane)
