"""expect: lab08.checkpoint_interval.half

A failure throws away the whole interval.
"""

from math import sqrt


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    return sqrt(save_s * between_s)
