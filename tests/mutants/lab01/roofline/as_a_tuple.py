"""expect: lab01.roofline.form

A tuple for a dict.
"""


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    rows = batch_size * num_tokens
    moved_bytes = number_bytes * (rows * inputs + inputs * outputs + rows * outputs)
    intensity = 2 * rows * inputs * outputs / moved_bytes
    bound = "compute" if intensity >= peak / bandwidth else "memory"
    return moved_bytes, intensity, min(peak, intensity * bandwidth), bound
