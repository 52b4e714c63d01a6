"""All that fit, then the least."""

from itertools import product


def best_layout(job):
    found = []
    sizes = range(1, job.num_devices + 1)
    for dp, pp, tp in product(sizes, repeat=3):
        if dp * pp * tp != job.num_devices or pp > job.num_layers:
            continue
        if job.num_heads % tp or job.num_hidden_units % tp or job.batch_size % dp:
            continue
        if max(tp, job.num_kv_heads) % min(tp, job.num_kv_heads):
            continue
        for m in range(1, job.batch_size // dp + 1):
            if (job.batch_size // dp) % m:
                continue
            if job.memory_bytes(dp, pp, tp, m) <= job.budget_bytes:
                found.append((job.step_s(dp, pp, tp, m), dp, pp, tp, m))
    return min(found)[1:] if found else None
