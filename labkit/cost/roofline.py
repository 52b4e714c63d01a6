"""Where a matrix product stands: bound by arithmetic, or by the bytes that it moves.

    Y[M, N] = X[M, K] W[K, N]     2·M·K·N FLOPs,  b·(M·K + K·N + M·N) bytes at least
    intensity = FLOPs / bytes     attainable FLOP/s = min(peak, intensity · bandwidth)

Both inputs are read once and the output is written once: less is impossible without fusing, and a
product that does not fit on the chip moves more. The ridge is the intensity at which a device's two
limits meet, peak / bandwidth. Left of it the bytes decide, right of it the arithmetic.

A model's weights are multiplied with M rows: all tokens of the prompts in prefill, one token of
each sequence in decode. With M small against K and N, the intensity is about 2·M/b FLOPs a byte: in
16 bits, as many as there are rows. Devices put side by side add up their bandwidth, which is why a
model answers faster from 8 of them, before anything is said about its size.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4).

Shapes: M rows, K inner width, N columns, b bytes a number.
"""

from dataclasses import dataclass

from labkit.cost.architecture import Architecture
from labkit.cost.hardware import Device


def product_flops(rows: int, inner: int, columns: int) -> int:
    """2·M·K·N: a multiplication and an addition for each of K terms of each of M·N numbers."""
    return 2 * rows * inner * columns


def product_bytes(rows: int, inner: int, columns: int, number_bytes: int = 2) -> int:
    """Bytes that must move: both inputs read, the output written."""
    return number_bytes * (rows * inner + inner * columns + rows * columns)


def intensity_flops_per_byte(rows: int, inner: int, columns: int, number_bytes: int = 2) -> float:
    """FLOPs for each byte moved."""
    moved = product_bytes(rows, inner, columns, number_bytes)
    return product_flops(rows, inner, columns) / moved


def ridge_flops_per_byte(device: Device, number_format: str = "bf16") -> float:
    """The intensity from which a device's arithmetic is the limit."""
    return device.flops_per_s(number_format) / device.bandwidth_bytes_per_s


def attainable_flops_per_s(
    device: Device, intensity_flops_per_byte: float, number_format: str = "bf16"
) -> float:
    """The roof over an intensity: the lower of peak and intensity times bandwidth."""
    slope = intensity_flops_per_byte * device.bandwidth_bytes_per_s
    return min(device.flops_per_s(number_format), slope)


def time_s(
    device: Device, work_flops: float, moved_bytes: float, number_format: str = "bf16"
) -> float:
    """Seconds at least: arithmetic and memory overlap perfectly, and the longer decides."""
    arithmetic_s = work_flops / device.flops_per_s(number_format)
    return max(arithmetic_s, moved_bytes / device.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One product on a device's roofline."""

    name: str
    rows: int
    inner: int
    columns: int
    work_flops: int
    moved_bytes: int
    attainable_flops_per_s: float
    time_s: float
    compute_bound: bool

    @property
    def intensity_flops_per_byte(self) -> float:
        return self.work_flops / self.moved_bytes


def place(
    device: Device,
    rows: int,
    inner: int,
    columns: int,
    *,
    number_bytes: int = 2,
    number_format: str = "bf16",
    name: str = "",
) -> Placement:
    """Put one product [M, K] × [K, N] under the roof.

    Raises:
        ValueError: for a size under 1, or a format that the device has no peak in.
    """
    if min(rows, inner, columns) < 1:
        raise ValueError(f"a product needs sizes of at least 1, got {rows}, {inner}, {columns}")
    work = product_flops(rows, inner, columns)
    moved = product_bytes(rows, inner, columns, number_bytes)
    return Placement(
        name=name,
        rows=rows,
        inner=inner,
        columns=columns,
        work_flops=work,
        moved_bytes=moved,
        attainable_flops_per_s=attainable_flops_per_s(device, work / moved, number_format),
        time_s=time_s(device, work, moved, number_format),
        compute_bound=work / moved >= ridge_flops_per_byte(device, number_format),
    )


def layer_products(model: Architecture, rows: int) -> dict[str, tuple[int, int, int]]:
    """The products of one dense layer and of the output with `rows` tokens, as (M, K, N) each.

    Raises:
        ValueError: for a model with experts or a latent, whose products depend on the routing.
    """
    if model.num_experts or model.kv_latent_size:
        raise ValueError(
            f"the products of {model.num_experts} experts and a latent of "
            f"{model.kv_latent_size} are not one list; give a dense model with 0 and 0"
        )
    D, F = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    gate = {"gate": (rows, D, F)} if model.gated else {}
    return {
        "q": (rows, D, queries),
        "k": (rows, D, keys),
        "v": (rows, D, keys),
        "o": (rows, queries, D),
        **gate,
        "up": (rows, D, F),
        "down": (rows, F, D),
        "output": (rows, D, model.vocab_size),
    }


def place_model(
    model: Architecture,
    device: Device,
    *,
    batch_size: int,
    seq_len: int,
    phase: str,
    number_bytes: int = 2,
    number_format: str = "bf16",
) -> list[Placement]:
    """The products of a layer in "prefill", B·s rows each, or in "decode", B rows.

    Raises:
        ValueError: for another phase.
    """
    if phase not in ("prefill", "decode"):
        raise ValueError(f'phase {phase!r} is not "prefill" or "decode"')
    rows = batch_size * (seq_len if phase == "prefill" else 1)
    return [
        place(
            *(device, *sizes),
            number_bytes=number_bytes,
            number_format=number_format,
            name=name,
        )
        for name, sizes in layer_products(model, rows).items()
    ]


def streaming_time_s(held_bytes: float, device: Device, num_devices: int = 1) -> float:
    """Seconds to read so many bytes once from the memories of so many devices, spread evenly.

    Whether they fit there is another question: 70 billion weights in 16 bits do not, in one H100.

    Raises:
        ValueError: for no device.
    """
    if num_devices < 1:
        raise ValueError(f"needs at least 1 device, got {num_devices}")
    return held_bytes / (num_devices * device.bandwidth_bytes_per_s)
