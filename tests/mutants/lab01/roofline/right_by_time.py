"""From the two times."""


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    rows = batch_size * num_tokens
    work, moved = 2 * rows * inputs * outputs, rows * (inputs + outputs) + inputs * outputs
    moved *= number_bytes
    in_memory = moved * peak > work * bandwidth
    found = dict(moved_bytes=moved, intensity=work / moved)
    found["flops_per_s"] = work * bandwidth / moved if in_memory else peak
    found["bound"] = "memory" if in_memory else "compute"
    return found
