"""By the shapes of three tensors."""

import torch


def roofline(batch_size, num_tokens, inputs, outputs, number_bytes, peak, bandwidth):
    shapes = (
        (batch_size, num_tokens, inputs),
        (inputs, outputs),
        (batch_size, num_tokens, outputs),
    )
    numbers = sum(torch.empty(shape, device="meta").numel() for shape in shapes)
    intensity = 2 * batch_size * num_tokens * inputs * outputs / (number_bytes * numbers)
    ridge = peak / bandwidth
    return {
        "bound": ("memory", "compute")[intensity >= ridge],
        "flops_per_s": peak if intensity >= ridge else bandwidth * intensity,
        "intensity": intensity,
        "moved_bytes": float(number_bytes * numbers),
    }
