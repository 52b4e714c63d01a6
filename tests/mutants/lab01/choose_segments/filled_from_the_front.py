"""expect: lab01.choose_segments.again

Every segment is as long as fits, and the last is what is left.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    lengths, held = [], budget + 1
    for bytes_ in layer_bytes:
        if held + bytes_ > budget - (len(lengths) - 1) * boundary_bytes:
            lengths.append(0)
            held = 0
        lengths[-1] += 1
        held += bytes_
        if held > budget - (len(lengths) - 1) * boundary_bytes:
            return None
    return lengths
