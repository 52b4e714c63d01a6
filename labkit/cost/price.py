"""What it costs: device hours times a price, for a training run and for a million tokens.

    device hours = FLOPs / (MFU · peak) / 3600         a run's, however many devices share it
    price        = device hours · price of an hour
    price of 10⁶ tokens = devices · price of an hour / 3600 / (tokens a second) · 10⁶

The price of a device hour is what a reader pays, and changes by the month: it is an argument, in
any currency. Hours are those of the model's FLOPs: without restarts, failed runs and the search for
a recipe.

Sources of the equations: Kaplan et al., arXiv 2001.08361, section 2.1, for FLOPs; Chowdhery et al.,
arXiv 2204.02311, appendix B, for MFU.
"""

MILLION = 10**6
HOUR_S = 3600


def device_hours(work_flops: float, utilization: float, peak_flops_per_s: float) -> float:
    """Hours of one device for so many model FLOPs at this MFU.

    Raises:
        ValueError: for an MFU that is not above 0 and at most 1, or a peak of 0.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"a utilization is above 0 and at most 1, got {utilization}")
    if peak_flops_per_s <= 0:
        raise ValueError(f"a peak is above 0 FLOP/s, got {peak_flops_per_s}")
    return work_flops / (utilization * peak_flops_per_s) / HOUR_S


def training_price(
    work_flops: float, utilization: float, peak_flops_per_s: float, *, price_per_hour: float
) -> float:
    """Price of a run, in the currency of `price_per_hour`, the price of one device's hour."""
    return device_hours(work_flops, utilization, peak_flops_per_s) * price_per_hour


def training_days(device_hours: float, num_devices: int) -> float:
    """Days that a run takes on so many devices.

    Raises:
        ValueError: for no device.
    """
    if num_devices < 1:
        raise ValueError(f"needs at least 1 device, got {num_devices}")
    return device_hours / num_devices / 24


def million_tokens_price(tokens_per_s: float, *, num_devices: int, price_per_hour: float) -> float:
    """Price of a million tokens that `num_devices` together read or write at this rate.

    Raises:
        ValueError: for a rate of 0 or less.
    """
    if tokens_per_s <= 0:
        raise ValueError(f"tokens a second must be above 0, got {tokens_per_s}")
    return MILLION / tokens_per_s * num_devices * price_per_hour / HOUR_S


def request_price(
    tokens_in: int, tokens_out: int, *, million_in_price: float, million_out_price: float
) -> float:
    """Price of one request: what it reads and what it writes, each at its own rate."""
    return (tokens_in * million_in_price + tokens_out * million_out_price) / MILLION
