"""Options that give a layout: what commands that train on many ranks take."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.compose.plan import Plan

# name: help; the defaults are those of labkit.compose.Plan
_SIZES = {
    "dp": "Replicas.",
    "pp": "Stages of the pipeline.",
    "cp": "Ranks that share each sequence.",
    "ep": "Ranks that share the experts.",
    "tp": "Ranks that share each matrix.",
    "zero": "What dp shards, 0 to 3.",
    "chunks": "Stages a rank, if interleaved.",
}
_CHOICES = {
    "schedule": (("gpipe", "1f1b", "interleaved", "zb-h1"), "Of the pipeline; default 1f1b."),
    "context": (("ring", "gather", "heads"), "How cp shares attention; default ring."),
}
_OTHERS = ("sequence_parallel",)


def layout_options(command: Callable) -> Callable:
    """Add the options of a layout to a command."""
    options = [
        *(click.option(f"--{name}", type=int, help=told) for name, told in _SIZES.items()),
        *(
            click.option(f"--{name}", type=click.Choice(names), help=told)
            for name, (names, told) in _CHOICES.items()
        ),
        click.option(
            "--sequence-parallel",
            is_flag=True,
            default=None,
            help="Between matrices a rank of tp holds T/tp tokens.",
        ),
        click.option(
            "--across",
            metavar="AXIS",
            help="The axis between hosts, such as pp; default: the mesh's order, dp outermost.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def plan_of(given: dict[str, Any], across: str | None = None) -> "Plan | None":
    """The plan that options ask for, which are taken out of `given`; None for one process.

    What a plan shares with the settings of a run, num_micro_batches and recompute, stays in
    `given`, and is set there for a pipeline that does not say how many micro-batches it has.

    Raises:
        ValueError: if the plan does not exist, or has another size than torchrun's world.
    """
    from labkit.compose.plan import Plan
    from labkit.launch.place import torchrun_size

    names = (*_SIZES, *_CHOICES, *_OTHERS)
    layout = {name: given.pop(name) for name in names}
    layout = {name: value for name, value in layout.items() if value is not None}
    world_size = torchrun_size()
    if not layout and across is None and world_size is None:
        return None
    if given.get("num_micro_batches") is None and layout.get("pp", 1) > 1:
        given["num_micro_batches"] = layout["pp"]
    shared = {name: given[name] for name in ("num_micro_batches", "recompute") if given.get(name)}
    plan = Plan(**layout, **shared)
    if world_size not in (None, plan.world_size):
        raise ValueError(
            f"the plan has {plan.world_size} ranks, torchrun started {world_size}: give --dp, "
            f"--pp, --tp and so on whose product is {world_size}, or start {plan.world_size}"
        )
    return plan
