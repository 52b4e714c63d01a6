"""The rounds one by one."""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    if schedule == "1f1b":
        return (num_stages - 1) / (num_micro_batches + num_stages - 1)
    left, step = num_micro_batches, 0
    while left > 0:
        size = min(left, held)
        step += size + num_stages - 1
        left -= size
    return 1 - num_micro_batches / step
