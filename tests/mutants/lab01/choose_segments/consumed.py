"""expect: lab01.choose_segments.input

Layers are taken out of the list.
"""


def choose_segments(layer_bytes, boundary_bytes, budget):
    for last in range(len(layer_bytes), 0, -1):
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
        if (
            start == end
            and last == 0
            and len(lengths) * boundary_bytes + sum(layer_bytes[end:]) <= budget
        ):
            return [*lengths, last]
    lengths, held = [], budget + 1
    while layer_bytes:
        held += layer_bytes[0]
        if held > budget - (len(lengths) - 1) * boundary_bytes:
            lengths.append(0)
            held = layer_bytes[0]
        lengths[-1] += 1
        layer_bytes.pop(0)
    return lengths
