"""The best way to cut what follows, from each start."""

from functools import cache


def choose_segments(layer_bytes, boundary_bytes, budget):
    @cache
    def cut(start, inputs):
        choices, held = [], inputs * boundary_bytes
        for stop in range(start + 1, len(layer_bytes) + 1):
            held += layer_bytes[stop - 1]
            if held > budget:
                break
            rest = cut(stop, inputs + 1) if stop < len(layer_bytes) else []
            if rest is not None:
                choices.append([stop - start, *rest])
        return max(choices, key=lambda lengths: lengths[-1], default=None)

    return cut(0, 0)
