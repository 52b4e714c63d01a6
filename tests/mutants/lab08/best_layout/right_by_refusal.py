"""What cannot be is refused by its price."""


def best_layout(job):
    found, n = {}, job.num_devices
    for dp in range(1, n + 1):
        for tp in range(1, n // dp + 1):
            for m in range(1, job.batch_size + 1):
                try:
                    sizes = dp, n // (dp * tp), tp, m
                    if job.memory_bytes(*sizes) <= job.budget_bytes:
                        found[sizes] = job.step_s(*sizes)
                except ValueError:
                    pass
    return min(found, key=found.get, default=None)
