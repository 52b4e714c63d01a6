"""Which numbers of a parameter a rank holds, and which of them two ranks have in common.

    parameter [outer, size, inner]    cut on the middle dimension by tensor parallelism
    as a matrix [outer, size * inner] a block is a range of columns
    flat range of a block             at most three rectangles: a part of a row, rows, a part of one

ZeRO cuts a block again, as a flat range. Two slices of two layouts meet in at most nine rectangles,
so a parameter goes from any layout to any other without the whole of it being anywhere.

Cost: a copy of each number that is taken. At most CHUNK numbers are read at a time, on top of the
range that is filled.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Numbers of one parameter: a flat range of a block of it.

    Args:
        shape: of the whole parameter.
        dim: the dimension that blocks cut.
        low, width: where the block begins on it, and its size; padding may reach over the end.
        start, numel: of the flat range in the block.
    """

    shape: tuple[int, ...]
    dim: int = 0
    low: int = 0
    width: int
    start: int = 0
    numel: int

    @property
    def row_numel(self) -> int:
        """Numbers of the whole parameter for one index of the dimensions before `dim`."""
        return prod(self.shape[self.dim :])

    def rectangles(self) -> list["Rectangle"]:
        """The flat range in the matrix that `row_numel` makes of the parameter, in order."""
        inner = prod(self.shape[self.dim + 1 :])
        wide, left, at = self.width * inner, self.low * inner, self.start
        end, found = self.start + self.numel, []
        while at < end:
            row, column = divmod(at, wide)
            rows = (end - at) // wide if column == 0 else 0
            columns = wide if rows else min(wide - column, end - at)
            found.append(
                Rectangle(
                    top=row,
                    bottom=row + max(rows, 1),
                    left=left + column,
                    right=left + column + columns,
                    offset=at - self.start,
                )
            )
            at += max(rows, 1) * columns
        return found

    @property
    def num_real(self) -> int:
        """Numbers that are no padding."""
        return sum(
            (r.bottom - r.top) * max(0, min(r.right, self.row_numel) - r.left)
            for r in self.rectangles()
        )


CHUNK = 2**20  # numbers that are read at a time


@dataclass(frozen=True, kw_only=True)
class Rectangle:
    """Rows and columns of a matrix, stored one row after the other from an offset on."""

    top: int
    bottom: int
    left: int
    right: int
    offset: int

    def chunks(self, wide: int) -> Iterator["Rectangle"]:
        """Parts of it for which at most CHUNK numbers are read, `wide` of them a row."""
        rows = max(1, CHUNK // wide)
        columns = self.right - self.left if rows > 1 else CHUNK
        for top in range(self.top, self.bottom, rows):
            for left in range(self.left, self.right, columns):
                yield replace(
                    self,
                    top=top,
                    bottom=min(top + rows, self.bottom),
                    left=left,
                    right=min(left + columns, self.right),
                )

    def place(self, part: "Rectangle") -> tuple[int, int]:
        """(first number, end) of the rows that hold a smaller rectangle."""
        wide = self.right - self.left
        row = self.offset + (part.top - self.top) * wide
        if part.bottom - part.top == 1:
            return row + part.left - self.left, row + part.right - self.left
        return row, row + (part.bottom - part.top) * wide

    def pick(self, numbers: torch.Tensor, part: "Rectangle") -> torch.Tensor:
        """The smaller rectangle [rows, columns] of the numbers that `place` says."""
        if part.bottom - part.top == 1:
            return numbers.view(1, -1)
        left = part.left - self.left
        return numbers.view(part.bottom - part.top, -1)[:, left : left + part.right - part.left]


def common(target: Slice, source: Slice) -> Iterator[tuple[Rectangle, Rectangle, Rectangle]]:
    """(of the target, of the source, what both have) wherever two slices meet; without padding.

    Raises:
        ValueError: if the two cut another shape, or another dimension of it.
    """
    if (target.shape, target.dim) != (source.shape, source.dim):
        raise ValueError(
            f"{source.shape} cut on dimension {source.dim} in the checkpoint, {target.shape} on "
            f"{target.dim} here"
        )
    for mine in target.rectangles():
        for theirs in source.rectangles():
            both = Rectangle(
                top=max(mine.top, theirs.top),
                bottom=min(mine.bottom, theirs.bottom),
                left=max(mine.left, theirs.left),
                right=min(mine.right, theirs.right, target.row_numel),
                offset=0,
            )
            if both.top < both.bottom and both.left < both.right:
                yield mine, theirs, both


def fill(
    flat: torch.Tensor,
    target: Slice,
    source: Slice,
    read: Callable[[int, int], torch.Tensor],
) -> int:
    """Copy what two slices have in common into flat [numel]; how many numbers that were.

    Args:
        read: (first, end) of the source's flat numbers to a 1-d tensor.
    """
    copied = 0
    for mine, theirs, met in common(target, source):
        for both in met.chunks(theirs.right - theirs.left):
            first, end = mine.place(both)
            into = mine.pick(flat[first:end], both)
            first, end = theirs.place(both)
            into.copy_(theirs.pick(read(first, end), both))
            copied += into.numel()
    return copied
