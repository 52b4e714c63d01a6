"""What the library has."""

from labkit.comm.collectives import copy_to, reduce_from

regions = copy_to, reduce_from
