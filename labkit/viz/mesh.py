"""The mesh as a cube, once for each of three axes, with every group of the axis in a colour.

The last axis of the order runs to the right, the one before it down, the first one into the depth.
A disc is a rank, its number is the rank's place in the world. A thick line is a hop of a group.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from matplotlib.axes import Axes

from labkit.cost.placement import groups_of_axis
from labkit.viz.style import INK, SMALL_WORD_SIZE, plain_axes, put_word
from labkit.viz.words import word

# Ten colours that black digits can be read on; neighbours differ in luminance too.
GROUP_COLOURS = (
    *("#8fb3d9", "#f3c98b", "#9cc79c", "#e3a6b5", "#cfe0f1"),
    *("#c7b3dd", "#f7e3a8", "#8fd0cd", "#d9d9d9", "#c9a98a"),
)
DEPTH = (0.52, 0.40)  # how far one step into the depth moves a disc, right and up


def draw_cube(axes: Axes, sizes: Mapping[str, int], axis: str) -> Axes:
    """The ranks of three axes, the groups along one of them coloured.

    Args:
        axes: drawn on, returned.
        sizes: three axes, the one of nearest neighbours last.
        axis: whose groups are shown.
    """
    plain_axes(axes)
    places = _places(sizes)
    for a, b in _edges(sizes):
        axes.plot(*zip(places[a], places[b], strict=True), color="#bbbbbb", linewidth=0.8, zorder=1)
    groups = groups_of_axis(sizes, tuple(sizes), axis)
    for group, colour in zip(groups, _colours(len(groups)), strict=True):
        for a, b in pairwise(group):
            ends = zip(places[a], places[b], strict=True)
            axes.plot(*ends, color=colour, linewidth=7, solid_capstyle="round", zorder=2)
        for rank in group:
            look: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.8, "zorder": 3}
            axes.plot(*places[rank], "o", markersize=17, color=colour, **look)
            put_word(axes, (places[rank][0], places[rank][1] - 0.015), str(rank))
    axes.margins(0.16)
    title = word("mesh.title", axis=axis, groups=len(groups), size=sizes[axis])
    axes.set_title(title, size=SMALL_WORD_SIZE, color=INK)
    return axes


def mesh_alt(sizes: Mapping[str, int]) -> str:
    """The cubes in words, for readers who do not see them."""
    told = []
    for axis in sizes:
        groups = groups_of_axis(sizes, tuple(sizes), axis)
        told.append(word("mesh.alt_axis", axis=axis, groups=in_words(groups)))
    ranks = sum(len(group) for group in groups)
    return word("mesh.alt", panels=len(sizes), ranks=ranks, told=". ".join(told))


def in_words(groups: Sequence[Sequence[int]]) -> str:
    """Groups as a reader says them: "0 1, 2 3"."""
    return ", ".join(" ".join(map(str, group)) for group in groups)


def _places(sizes: Mapping[str, int]) -> dict[int, tuple[float, float]]:
    grid = product(*(range(size) for size in sizes.values()))
    return {
        rank: (right + DEPTH[0] * deep, DEPTH[1] * deep - down)
        for rank, (deep, down, right) in enumerate(grid)
    }


def _edges(sizes: Mapping[str, int]) -> list[tuple[int, int]]:
    return [
        hop
        for axis in sizes
        for group in groups_of_axis(sizes, tuple(sizes), axis)
        for hop in pairwise(group)
    ]


def _colours(count: int) -> list[str]:
    return [GROUP_COLOURS[i % len(GROUP_COLOURS)] for i in range(count)]
