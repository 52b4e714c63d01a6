"""expect: lab01.roofline.moved_bytes.values

One row a sequence, in prefill too.
"""


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    rows = batch_size
    flops = 2 * rows * inputs * outputs
    moved_bytes = number_bytes * (rows * inputs + inputs * outputs + rows * outputs)
    intensity = flops / moved_bytes
    return {
        "moved_bytes": moved_bytes,
        "intensity": intensity,
        "flops_per_s": min(peak, intensity * bandwidth),
        "bound": "compute" if intensity >= peak / bandwidth else "memory",
    }
