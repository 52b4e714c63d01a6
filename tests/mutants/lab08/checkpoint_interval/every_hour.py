"""expect: lab08.checkpoint_interval.constant

Every hour.
"""


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    return 3600.0
