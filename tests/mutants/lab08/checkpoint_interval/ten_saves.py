"""expect: lab08.checkpoint_interval.short

Ten times the save.
"""


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    return 10 * save_s
