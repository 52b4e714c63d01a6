"""Three terms of the series."""

from math import sqrt


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    ratio = save_s / (2 * between_s)
    root = sqrt(2 * save_s * between_s)
    return root * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s
