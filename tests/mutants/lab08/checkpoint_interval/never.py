"""expect: lab08.checkpoint_interval.long

Never.
"""


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    return 50 * between_s + save_s
