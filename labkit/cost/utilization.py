"""MFU and HFU: what share of a device's peak a training step uses, and back.

    MFU = model FLOPs of a step / (step time · devices · peak)
    HFU = the same with the FLOPs that really ran: recomputation included

Model FLOPs are those that the model's forward and backward need, whatever the program does: MFU
falls when a program recomputes, HFU does not. Two conventions are in use for attention: all pairs,
which is PaLM's, and the causal half, which counting.py has by default; a figure is only comparable
with another of the same convention.

PaLM's equation counts the tokens: with N parameters, L layers, H heads of width d and s tokens,
peak throughput is P / (6N + 12·L·H·d·s) tokens a second, and MFU is observed over peak throughput.

Source: Chowdhery et al. 2022, arXiv 2204.02311, section 4.1 and appendix B.
"""

from labkit.cost.architecture import Architecture
from labkit.cost.counting import training_flops


def flops_utilization(
    work_flops: float, step_time_s: float, num_devices: int, peak_flops_per_s: float
) -> float:
    """MFU of a step's model FLOPs, HFU of its hardware FLOPs.

    Args:
        work_flops: of the whole step, over all devices.
        peak_flops_per_s: of one device, dense, in the format of the products.

    Raises:
        ValueError: unless time, devices and peak are above 0.
    """
    if step_time_s <= 0 or num_devices < 1 or peak_flops_per_s <= 0:
        numbers = f"{step_time_s} s, {num_devices} devices, {peak_flops_per_s} FLOP/s"
        raise ValueError(f"needs a time, a device and a peak above 0, got {numbers}")
    return work_flops / (step_time_s * num_devices * peak_flops_per_s)


def step_time_of_utilization_s(
    work_flops: float, utilization: float, num_devices: int, peak_flops_per_s: float
) -> float:
    """Seconds of a step that reaches this share of the peak: the equation solved for time.

    Raises:
        ValueError: for a share that is not above 0 and at most 1.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"a utilization is above 0 and at most 1, got {utilization}")
    return work_flops / (utilization * num_devices * peak_flops_per_s)


def mfu(
    model: Architecture,
    *,
    num_tokens: int,
    seq_len: int,
    step_time_s: float,
    num_devices: int,
    peak_flops_per_s: float,
    causal: bool = True,
) -> float:
    """Model FLOPs utilization of a step of `num_tokens`, over all devices."""
    work = training_flops(model, num_tokens, seq_len, causal)
    return flops_utilization(work, step_time_s, num_devices, peak_flops_per_s)


def hfu(
    model: Architecture,
    *,
    num_tokens: int,
    seq_len: int,
    step_time_s: float,
    num_devices: int,
    peak_flops_per_s: float,
    recompute: str,
    causal: bool = True,
) -> float:
    """Hardware FLOPs utilization: what backward ran again counts too."""
    work = training_flops(model, num_tokens, seq_len, causal, recompute)
    return flops_utilization(work, step_time_s, num_devices, peak_flops_per_s)


def tokens_per_s(num_tokens: int, step_time_s: float) -> float:
    """Throughput of a step of `num_tokens`."""
    if step_time_s <= 0:
        raise ValueError(f"a step takes more than 0 s, got {step_time_s}")
    return num_tokens / step_time_s


def palm_mfu(
    num_parameters: float,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    seq_len: int,
    *,
    observed_tokens_per_s: float,
    num_devices: int,
    peak_flops_per_s: float,
) -> float:
    """PaLM's own equation: 6N + 12·L·H·d·s FLOPs a token, embeddings counted in N."""
    token_flops = 6 * num_parameters + 12 * num_layers * num_heads * head_dim * seq_len
    return flops_utilization(
        token_flops * observed_tokens_per_s, 1.0, num_devices, peak_flops_per_s
    )
