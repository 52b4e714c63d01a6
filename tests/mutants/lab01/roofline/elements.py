"""expect: lab01.roofline.moved_bytes.elements

Numbers for bytes.
"""


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    rows = batch_size * num_tokens
    flops = 2 * rows * inputs * outputs
    moved_bytes = rows * inputs + inputs * outputs + rows * outputs
    intensity = flops / moved_bytes
    return {
        "moved_bytes": moved_bytes,
        "intensity": intensity,
        "flops_per_s": min(peak, intensity * bandwidth),
        "bound": "compute" if intensity >= peak / bandwidth else "memory",
    }
