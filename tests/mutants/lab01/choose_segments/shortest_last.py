"""expect: lab01.choose_segments.again

The shortest last segment for the longest.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    for last in range(1, len(layer_bytes) + 1):
        lengths, start, end = [], 0, len(layer_bytes) - last
        while start < end:
            room = budget - len(lengths) * boundary_bytes
            stop = start
            while stop < end and sum(layer_bytes[start : stop + 1]) <= room:
                stop += 1
            if stop == start:
                break
            lengths.append(stop - start)
            start = stop
        if start == end and len(lengths) * boundary_bytes + sum(layer_bytes[end:]) <= budget:
            return [*lengths, last]
    return None
