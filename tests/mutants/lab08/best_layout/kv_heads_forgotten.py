"""expect: run.raised

KV heads need not divide.
"""


def best_layout(job):
    fastest, best = float("inf"), None
    for tp in range(1, job.num_devices + 1):
        if job.num_heads % tp or job.num_hidden_units % tp:
            continue
        for pp in range(1, job.num_layers + 1):
            dp, left = divmod(job.num_devices, pp * tp)
            for m in range(1, job.batch_size + 1):
                if left or job.batch_size % (dp * m):
                    continue
                if job.memory_bytes(dp, pp, tp, m) > job.budget_bytes:
                    continue
                seconds = job.step_s(dp, pp, tp, m)
                if seconds < fastest:
                    fastest, best = seconds, (dp, pp, tp, m)
    return best
