"""expect: run.type

A text.
"""

from math import sqrt


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    return f"{sqrt(2 * save_s * between_s):.0f} s"
