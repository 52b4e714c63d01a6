"""expect: lab01.choose_segments.again

Two halves, always.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    half = len(layer_bytes) // 2
    return [half, len(layer_bytes) - half] if half else [1]
