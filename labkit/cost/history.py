"""How models, chips and memory grew: tables with their sources, and growth rates fitted to them.

    log y = a + b·t, least squares over a table;  growth in two years = exp(2·b)

Training compute is 6·(parameters that a token meets)·tokens, except where a paper prints a total. A
date is that of the first paper, or of the announcement. Devices are those of hardware.py, with the
year in which they were announced; a model is set beside what was announced in a year before its
own, since it was trained on that.

Sources stand in each row. MEMORY_WALL holds the rates of arXiv 2403.14123, abstract: peak FLOP/s of
servers, DRAM bandwidth and interconnect bandwidth over twenty years.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.cost.hardware import DEVICES, LINKS, Device

MEMORY_WALL = {"flops": 3.0, "bandwidth": 1.6, "interconnect": 1.4}  # factor in two years
SECONDS_PER_YEAR = 365.25 * 24 * 3600
TRAINING_FORMAT = "fp16"  # the peak that training uses on all of the devices below
# One part of each generation that large models were trained on, as NVIDIA announced them.
DATA_CENTRE_GPUS = ("v100", "a100-40", "a100-80", "h100", "h200", "b200")


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """A model and what its paper says of it.

    Args:
        date: the middle of its month, as a year: 2020.375 is in May 2020.
        parameters: all of them.
        active_parameters: those that a token meets.
        tokens: that training read; None where the paper leaves it open.
        printed_flops: of training, where a paper prints it.
        reported: known from an announcement without a paper.
    """

    name: str
    date: float
    parameters: float
    source: str
    active_parameters: float
    tokens: float | None = None
    printed_flops: float | None = None
    reported: bool = False

    @property
    def is_sparse(self) -> bool:
        return self.active_parameters < self.parameters

    @property
    def training_flops(self) -> float | None:
        if self.printed_flops is not None or self.tokens is None:
            return self.printed_flops
        return 6 * self.active_parameters * self.tokens


def _model(
    name: str,
    month: str,
    billions: float,
    source: str,
    *,
    active: float | None = None,
    tokens: float | None = None,
    flops: float | None = None,
    reported: bool = False,
) -> PublishedModel:
    """A row: month as "2020-05", parameters in billions, tokens and FLOPs as they are."""
    year, number = map(int, month.split("-"))
    return PublishedModel(
        name=name,
        date=year + (number - 0.5) / 12,
        parameters=billions * 1e9,
        active_parameters=(billions if active is None else active) * 1e9,
        source=source,
        tokens=tokens,
        printed_flops=flops,
        reported=reported,
    )


_GPT3 = "arXiv 2005.14165, table D.1"
_TURING = "Microsoft Research's announcement of Turing-NLG, 10 February 2020"

MODELS = (
    _model("BERT-Large", "2018-10", 0.34, f"arXiv 1810.04805, section 3; {_GPT3}", flops=5.33e20),
    _model("GPT-2", "2019-02", 1.542, "Radford et al. 2019, table 2"),
    _model("Megatron-LM", "2019-09", 8.3, "arXiv 1909.08053, abstract"),
    _model("T5-11B", "2019-10", 11, f"arXiv 1910.10683, section 3.7; {_GPT3}", flops=3.30e22),
    _model("Turing-NLG", "2020-02", 17, _TURING, reported=True),
    _model("GPT-3", "2020-05", 175, _GPT3, tokens=300e9, flops=3.14e23),
    _model("Gopher", "2021-12", 280, "arXiv 2112.11446, abstract and section 3.2", tokens=300e9),
    _model("MT-NLG", "2022-01", 530, "arXiv 2201.11990, abstract and section 3.2", tokens=270e9),
    _model("Chinchilla", "2022-03", 70, "arXiv 2203.15556, abstract", tokens=1.4e12),
    _model("PaLM", "2022-04", 540.35, "arXiv 2204.02311, table 1 and abstract", tokens=780e9),
    _model("LLaMA-65B", "2023-02", 65.2, "arXiv 2302.13971, table 2", tokens=1.4e12),
    _model("Llama 2 70B", "2023-07", 70, "arXiv 2307.09288, table 1", tokens=2.0e12),
    _model(
        "Llama 3 405B",
        "2024-07",
        405,
        "arXiv 2407.21783, section 1",
        tokens=15.6e12,
        flops=3.8e25,
    ),
    _model("DeepSeek-V3", "2024-12", 671, "arXiv 2412.19437, abstract", active=37, tokens=14.8e12),
)


def growth_in_two_years(points: Iterable[tuple[float, float]]) -> float:
    """The factor by which a quantity grows in two years: a line through its logarithms.

    Args:
        points: (year, value), values above 0.

    Raises:
        ValueError: if all points lie in one year.
    """
    rows = [(year, math.log(value)) for year, value in points]
    if len({year for year, _ in rows}) < 2:
        raise ValueError(f"{len(rows)} points in one year have no growth; give at least 2 years")
    middle = sum(year for year, _ in rows) / len(rows)
    slope = sum((t - middle) * y for t, y in rows) / sum((t - middle) ** 2 for t, _ in rows)
    return math.exp(2 * slope)


def record_holders(models: Iterable[PublishedModel] = MODELS) -> list[PublishedModel]:
    """The dense models that were larger than all before them, by date."""
    held: list[PublishedModel] = []
    for model in sorted(models, key=lambda model: model.date):
        if not model.is_sparse and (not held or model.parameters > held[-1].parameters):
            held.append(model)
    return held


def gpus() -> list[Device]:
    """The data-centre GPUs of hardware.py that training used, oldest first."""
    return [DEVICES[name] for name in DATA_CENTRE_GPUS]


def gpu_before(date: float) -> Device:
    """The GPU with the most FLOP/s, and then the most memory, of those of an earlier year.

    Raises:
        ValueError: if the table has none.
    """
    earlier = [gpu for gpu in gpus() if gpu.year < int(date)]
    if not earlier:
        raise ValueError(
            f"no GPU before {int(date)}; the first in the table is of {gpus()[0].year}"
        )
    return max(earlier, key=lambda gpu: (gpu.flops_per_s(TRAINING_FORMAT), gpu.memory_bytes))


def gpus_to_hold(model: PublishedModel, bytes_per_parameter: float = 16) -> float:
    """Memories of its time's GPU that the state of training fills: 16 bytes a parameter with Adam
    in mixed precision (arXiv 1910.02054, section 3.1), activations not counted."""
    return bytes_per_parameter * model.parameters / gpu_before(model.date).memory_bytes


def gpu_years(flops: float, gpu: Device) -> float:
    """Years of one GPU at its peak, which no program reaches."""
    return flops / (gpu.flops_per_s(TRAINING_FORMAT) * SECONDS_PER_YEAR)


def gpu_series() -> dict[str, list[tuple[float, float]]]:
    """(year, value) of each GPU: "flops" a second, "bandwidth" of memory and "interconnect" in
    bytes a second, "memory" in bytes."""
    table = gpus()
    return {
        "flops": [(gpu.year, gpu.flops_per_s(TRAINING_FORMAT)) for gpu in table],
        "bandwidth": [(gpu.year, gpu.bandwidth_bytes_per_s) for gpu in table],
        "interconnect": [(gpu.year, LINKS[gpu.link].bandwidth_bytes_per_s) for gpu in table],
        "memory": [(gpu.year, gpu.memory_bytes) for gpu in table],
    }
