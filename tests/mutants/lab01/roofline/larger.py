"""expect: lab01.roofline.flops_per_s.peak_alone

The larger of the two limits.
"""


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    rows = batch_size * num_tokens
    flops = 2 * rows * inputs * outputs
    moved_bytes = number_bytes * (rows * inputs + inputs * outputs + rows * outputs)
    intensity = flops / moved_bytes
    return {
        "moved_bytes": moved_bytes,
        "intensity": intensity,
        "flops_per_s": max(peak, intensity * bandwidth),
        "bound": "compute" if intensity >= peak / bandwidth else "memory",
    }
