"""expect: lab01.choose_segments.plain

One segment for all.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    return [len(layer_bytes)]
