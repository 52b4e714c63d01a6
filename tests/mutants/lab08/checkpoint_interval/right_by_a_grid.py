"""The best of a fine grid."""

from math import expm1


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    grid = [between_s * 0.001 * 1.01**step for step in range(800)]
    return min(grid, key=lambda tau: expm1((tau + save_s) / between_s) / tau)
