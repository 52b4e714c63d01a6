"""Digits are divided out."""

from math import prod


def mesh_groups(sizes, axes):
    def key(rank):
        left, rest = rank, []
        for axis in reversed(list(sizes)):
            left, digit = divmod(left, sizes[axis])
            rest.append(0 if axis in axes else digit)
        return tuple(rest)

    ranks = range(prod(sizes.values()))
    return [[r for r in ranks if key(r) == each] for each in sorted({key(r) for r in ranks})]
