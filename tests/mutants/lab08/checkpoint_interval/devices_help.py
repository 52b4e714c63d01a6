"""expect: lab08.checkpoint_interval.more_devices

More devices fail less often.
"""

from math import sqrt


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    return sqrt(2 * save_s * device_between_failures_s * num_devices)
