"""expect: lab01.choose_segments.again

As many segments as the square root of the layers, always.
"""

import math


def choose_segments(layer_bytes, boundary_bytes, budget):
    length = math.isqrt(len(layer_bytes))
    lengths = [length] * (len(layer_bytes) // length)
    lengths[-1] += len(layer_bytes) % length
    return lengths
