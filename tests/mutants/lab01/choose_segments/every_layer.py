"""expect: lab01.choose_segments.again

Every layer is a segment.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    return [1] * len(layer_bytes)
