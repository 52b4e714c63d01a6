"""expect: lab08.checkpoint_interval.hours

In hours.
"""

from math import sqrt


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    return sqrt(2 * save_s * between_s) / 3600
