"""expect: lab02.two_levels.between

Sum inside, then sum the whole of it between hosts.
"""

from labkit.comm.handmade import ring_all_reduce


def two_levels(x, inside, between):
    return ring_all_reduce(ring_all_reduce(x, inside), between)
