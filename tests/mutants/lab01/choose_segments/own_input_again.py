"""expect: lab01.choose_segments.exactly

A segment's own input counts besides what its layers keep.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    for last in range(len(layer_bytes), 0, -1):
        lengths, start, end = [], 0, len(layer_bytes) - last
        while start < end:
            room = budget - (1 + len(lengths)) * boundary_bytes
            stop = start
            while stop < end and sum(layer_bytes[start : stop + 1]) <= room:
                stop += 1
            if stop == start:
                break
            lengths.append(stop - start)
            start = stop
        if start == end and (1 + len(lengths)) * boundary_bytes + sum(layer_bytes[end:]) <= budget:
            return [*lengths, last]
    return None
