"""expect: lab08.checkpoint_interval.proportional

Half the time between failures.
"""


def checkpoint_interval(num_devices, device_between_failures_s, save_s, restart_s):
    between_s = device_between_failures_s / num_devices
    return between_s / 2
