"""expect: lab01.choose_segments.gave_up

Segments of one length, the longest that fits.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    num_layers = len(layer_bytes)
    for length in range(num_layers, 0, -1):
        starts = range(0, num_layers, length)
        sums = [sum(layer_bytes[start : start + length]) for start in starts]
        if max(j * boundary_bytes + held for j, held in enumerate(sums)) <= budget:
            return [min(length, num_layers - start) for start in starts]
    return None
