"""expect: lab02.two_levels.values

The sum of one host.
"""

from labkit.comm.handmade import ring_all_reduce


def two_levels(x, inside, between):
    return ring_all_reduce(x, inside)
