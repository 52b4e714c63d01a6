"""The exact expectation, its best interval by thirds."""

from math import exp


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices

    def kept(interval_s):
        return interval_s / (exp((interval_s + save_s) / between_s) - 1)

    low, high = 0.0, between_s
    while high - low > 1e-6 * between_s:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if kept(left) < kept(right) else (low, right)
    return low
