"""Devices and links, as their makers state them, each with where it is stated.

Peaks are for dense matrices. A data sheet's "with sparsity" is twice as much, and is never used
here; where a sheet prints only that, half of it stands here and the source says so. A peak is what
the arithmetic units could do, not what a program gets: see roofline.py and utilization.py.

Memory is what the maker sells, in GB of 10⁹ bytes; a little of it is never a program's. A link's
bandwidth is one direction's: NVLink is sold as the sum of both. Its latency is what NCCL's cost
model has for a step of a ring with large messages (src/graph/tuning.cc, hwLatencies, Simple): one
number each for NVLink, PCIe and the network, for which earlier releases had 9.6 µs.

`reported` marks figures that no data sheet states for this part, on which public sources differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.cost.units import GB, parse_units

__all__ = ["DEVICES", "LINKS", "Device", "LinkKind", "device", "link", "parse_units"]

TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator, or one processor.

    Args:
        peak_flops_per_s: dense, by number format: "fp16", "bf16", "fp8", …
        year: when it was announced.
        link: the name in LINKS of what joins it to its neighbours in a node.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: int
    peak_flops_per_s: Mapping[str, float]
    year: int
    link: str
    source: str
    reported: bool = False

    def flops_per_s(self, number_format: str) -> float:
        """The dense peak in a format.

        Raises:
            ValueError: for a format without a peak.
        """
        if number_format not in self.peak_flops_per_s:
            known = ", ".join(self.peak_flops_per_s)
            raise ValueError(f"{self.name} has no peak in {number_format!r}; it has {known}")
        return self.peak_flops_per_s[number_format]


@dataclass(frozen=True, kw_only=True)
class LinkKind:
    """A kind of link: what one device, or one network adapter, sends in one direction.

    Args:
        latency_s: seconds of one message; None where no source states it.
    """

    name: str
    bandwidth_bytes_per_s: float
    source: str
    latency_s: float | None = None
    reported: bool = False


def _device(
    name: str,
    memory_gb: float,
    bandwidth_gb_per_s: float,
    year: int,
    link: str,
    tera_flops_per_s: Mapping[str, float],
    source: str,
    reported: bool = False,
) -> Device:
    return Device(
        name=name,
        memory_bytes=round(memory_gb * GB),
        bandwidth_bytes_per_s=round(bandwidth_gb_per_s * GB),
        peak_flops_per_s={key: round(rate * TERA) for key, rate in tera_flops_per_s.items()},
        year=year,
        link=link,
        source=source,
        reported=reported,
    )


_V100 = dict(fp64=7.8, fp32=15.7, fp16=125)
_AMPERE = dict(fp64=19.5, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624)
_HOPPER = dict(fp64=66.9, fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9)
_BLACKWELL = dict(tf32=1100, fp16=2250, bf16=2250, fp8=4500, int8=4500, fp4=9000)
_CDNA3 = dict(fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9)
_ADA = dict(fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6)
_L4 = dict(fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5)

_A100_SHEET = "NVIDIA A100 data sheet, SXM column, without sparsity"
_H100_PAPER = "NVIDIA H100 architecture white paper, table of peak rates, SXM5, dense"
_DEVICES = (
    _device("v100", 32, 900, 2017, "nvlink2", _V100, "NVIDIA V100 data sheet, SXM2 column"),
    _device("a100-40", 40, 1555, 2020, "nvlink3", _AMPERE, _A100_SHEET),
    _device("a100-80", 80, 2039, 2020, "nvlink3", _AMPERE, _A100_SHEET),
    _device(
        *("h100", 80, 3350, 2022, "nvlink4", _HOPPER),
        _H100_PAPER + "; bandwidth: data sheet, SXM column",
    ),
    _device(
        *("h200", 141, 4800, 2023, "nvlink4", _HOPPER),
        "NVIDIA H200 data sheet, SXM column; peaks are the H100's",
    ),
    _device(
        *("b200", 180, 8000, 2024, "nvlink5", _BLACKWELL),
        "NVIDIA HGX B200 data sheet, an eighth of the board; half of the peaks with sparsity",
    ),
    _device(
        *("mi300x", 192, 5300, 2023, "infinity-fabric", _CDNA3),
        "AMD Instinct MI300X data sheet, matrix peaks without sparsity",
    ),
    _device(
        *("rtx4090", 24, 1008, 2022, "pcie4", _ADA),
        "NVIDIA Ada GPU architecture white paper, table of the RTX 4090, FP32 accumulation",
    ),
    _device(
        *("l4", 24, 300, 2023, "pcie4", _L4),
        "NVIDIA L4 data sheet, half of the peaks with sparsity",
    ),
    _device(
        *("ascend-910b3", 64, 1600, 2023, "hccs", dict(fp16=313, bf16=313)),
        "Ascend 910B3, in the Atlas 800T A2: 313 TFLOP/s by Huawei's developer forum "
        "(jdc.huawei.com, thread 1175654), 64 GB and 1.6 TB/s by its users; other pages on a 910B "
        "print 256, 280 (ai.gitee.com), 320 or 400 TFLOP/s, and 0.8 to 1.8 TB/s",
        reported=True,
    ),
    _device(
        *("laptop-cpu", 16, 89.6, 2023, "ethernet-1g", dict(fp64=0.4224, fp32=0.8448)),
        "AMD Ryzen 7 7840U product page: 8 cores, base clock 3.3 GHz, two channels of DDR5-5600. "
        "Computed: 32 FP32 FLOP a cycle and core (two 256-bit fused multiply-adds), 16 FP64; 16 GB "
        "is a usual fitting",
        reported=True,
    ),
)

DEVICES: dict[str, Device] = {each.name: each for each in _DEVICES}


_NVLINK = "NVIDIA data sheets of {}: {} GB/s is the sum of both directions"
_PCIE = "PCI Express base specification {}: {} GT/s a lane, 16 lanes, 128b/130b"
_IB = "NVIDIA InfiniBand {}: {} Gbit/s a port of four lanes"
_ETHERNET = "IEEE 802.3: {} Gbit/s before framing"


_NVLINK_S, _PCIE_S, _NETWORK_S = 3.4e-6, 5.7e-6, 14.0e-6  # NCCL's, see above


def _link(
    name: str,
    bandwidth_gb_per_s: float,
    source: str,
    latency_s: float | None = None,
    reported: bool = False,
) -> LinkKind:
    return LinkKind(
        name=name,
        bandwidth_bytes_per_s=bandwidth_gb_per_s * GB,
        source=source,
        latency_s=latency_s,
        reported=reported,
    )


_LINKS = (
    _link("nvlink2", 150, _NVLINK.format("V100", 300), _NVLINK_S),
    _link("nvlink3", 300, _NVLINK.format("A100", 600), _NVLINK_S),
    _link("nvlink4", 450, _NVLINK.format("H100", 900), _NVLINK_S),
    _link("nvlink5", 900, _NVLINK.format("B200", 1800), _NVLINK_S),
    _link(
        "infinity-fabric", 448, "AMD MI300X data sheet: seven links of 128 GB/s, both directions"
    ),
    _link(
        *("hccs", 196, "Atlas 800T A2: seven links of 56 GB/s; taken as both directions together"),
        reported=True,
    ),
    _link("pcie4", 16 * 16 * 128 / 130 / 8, _PCIE.format("4.0", 16), _PCIE_S),
    _link("pcie5", 32 * 16 * 128 / 130 / 8, _PCIE.format("5.0", 32), _PCIE_S),
    _link("infiniband-hdr", 25, _IB.format("HDR", 200), _NETWORK_S),
    _link("infiniband-ndr", 50, _IB.format("NDR", 400), _NETWORK_S),
    _link("ethernet-1g", 0.125, _ETHERNET.format(1)),
    _link("ethernet-25g", 3.125, _ETHERNET.format(25)),
    _link("ethernet-100g", 12.5, _ETHERNET.format(100)),
)

LINKS: dict[str, LinkKind] = {each.name: each for each in _LINKS}


def device(name: str) -> Device:
    """A device by its name.

    Raises:
        ValueError: for a name that is not in DEVICES.
    """
    if name not in DEVICES:
        raise ValueError(f"no device {name!r}; known are {', '.join(sorted(DEVICES))}")
    return DEVICES[name]


def link(name: str) -> LinkKind:
    """A kind of link by its name.

    Raises:
        ValueError: for a name that is not in LINKS.
    """
    if name not in LINKS:
        raise ValueError(f"no link {name!r}; known are {', '.join(sorted(LINKS))}")
    return LINKS[name]
