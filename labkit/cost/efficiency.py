"""How much of its peak a device attains in a matrix product: one law, one constant a device.

A product of [M, K] and [K, N] in 16 bits does 2·M·K·N FLOPs and moves 2(M·K + K·N + M·N) bytes:

    seconds = FLOPs / (a · peak) + bytes / (MEMORY_SHARE · bandwidth)

so what it attains rises with its intensity I = FLOPs / bytes and saturates at the share a:

    attained / peak = a · I / (I + a · ridge),   ridge = peak / (MEMORY_SHARE · bandwidth)

Everything that is no product (norms, dropout, softmax, residual sums) costs its bytes alone.

The constants were fitted on one published row each, by the whole model of a step, and residuals.py
fits them again. So a holds what the model leaves out, too: the launch of kernels and whatever a
program of that time did badly. The H100's is lower: its tensor cores grew faster than the rest.
"""

from dataclasses import dataclass

from labkit.cost.hardware import Device

NUMBER_BYTES = 2  # 16-bit numbers
MEMORY_SHARE = 0.85
FORMATS = ("bf16", "fp16", "fp32")  # the first that a device has a peak in


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """A device's law.

    Args:
        peak_share: a, what a product of infinite intensity attains.
        fitted_on: the published row that gave it; empty for a guess.
    """

    peak_share: float
    fitted_on: str = ""


EFFICIENCY = {
    "a100-80": Efficiency(peak_share=0.7781, fitted_on="recomputation: 175B selective"),
    "h100": Efficiency(peak_share=0.6106, fitted_on="llama3: 8192 GPUs, 8192 tokens"),
}


def efficiency(device: Device) -> Efficiency:
    """The device's own law, or the mean of the fitted ones, as a guess, where none was fitted."""
    if device.name in EFFICIENCY:
        return EFFICIENCY[device.name]
    shares = [each.peak_share for each in EFFICIENCY.values()]
    return Efficiency(peak_share=sum(shares) / len(shares))


def peak_flops_per_s(device: Device) -> float:
    """In 16 bits, or in fp32 on a device without."""
    peaks = device.peak_flops_per_s
    for number_format in FORMATS:
        if number_format in peaks:
            return peaks[number_format]
    raise ValueError(f"{device.name} has no peak in {' or '.join(FORMATS)}")


def flops_s(flops: float, device: Device, law: Efficiency) -> float:
    """Seconds of the arithmetic of products, their bytes aside."""
    return flops / (law.peak_share * peak_flops_per_s(device))


def bytes_s(num_bytes: float, device: Device) -> float:
    """Seconds to move so many bytes to or from the device's memory."""
    return num_bytes / (MEMORY_SHARE * device.bandwidth_bytes_per_s)


def product_s(
    num_rows: float, inner: float, num_columns: float, device: Device, law: Efficiency
) -> float:
    """Seconds of [M, K] x [K, N]: arithmetic, then bytes."""
    numbers = num_rows * inner + inner * num_columns + num_rows * num_columns
    arithmetic_s = flops_s(2 * num_rows * inner * num_columns, device, law)
    return arithmetic_s + bytes_s(NUMBER_BYTES * numbers, device)


def attained_share(
    num_rows: float, inner: float, num_columns: float, device: Device, law: Efficiency
) -> float:
    """Of the peak, in [M, K] x [K, N]."""
    ideal_s = 2 * num_rows * inner * num_columns / peak_flops_per_s(device)
    return ideal_s / product_s(num_rows, inner, num_columns, device, law)
