"""Every way to cut is tried."""

from itertools import combinations, pairwise


def choose_segments(layer_bytes, boundary_bytes, budget):
    num_layers, best = len(layer_bytes), None
    for number in range(num_layers):
        for cuts in combinations(range(1, num_layers), number):
            ends = [0, *cuts, num_layers]
            pairs = list(pairwise(ends))
            held = [j * boundary_bytes + sum(layer_bytes[a:b]) for j, (a, b) in enumerate(pairs)]
            lengths = [b - a for a, b in pairs]
            if max(held) <= budget and (best is None or lengths[-1] > best[-1]):
                best = lengths
    return best
