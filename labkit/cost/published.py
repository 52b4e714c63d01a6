"""Training runs that were published with their speed, as data: what step_time.py is held to.

| table                   | source                        | rows | printed        | device    |
| ----------------------- | ----------------------------- | ---- | -------------- | --------- |
| "megatron-weak-scaling" | arXiv 2104.04473, table 1     | 10   | TFLOP/s a GPU  | A100-80GB |
| "zero3-and-3d"          | arXiv 2104.04473, table 2     | 12   | TFLOP/s a GPU  | A100-80GB |
| "recomputation"         | arXiv 2205.05198, tables 3, 5 | 8    | seconds a step | A100-80GB |
| "llama3"                | arXiv 2407.21783v3, table 4   | 3    | TFLOP/s a GPU  | H100      |

The last stands in published_llama.py. TFLOP/s become seconds by the FLOPs that the authors divide
by. Megatron's equation includes a full recomputation, for B sequences of s tokens, l layers of
width h and V words:

    96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h))

What a paper does not print is in assumptions.py.
"""

from dataclasses import dataclass, replace

from labkit.cost.architecture import Architecture, architecture
from labkit.cost.cluster import Cluster
from labkit.cost.counting import training_flops
from labkit.cost.hardware import device, link
from labkit.cost.layout import Layout
from labkit.cost.software import DEEPSPEED, MEGATRON, Software

TERA, VOCABULARY = 10**12, 51_200
SELENE = Cluster(device=device("a100-80"), intra=link("nvlink3"), inter=link("infiniband-hdr"))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published row.

    Args:
        measured_s: seconds of a step: printed, or from the printed rate.
        flops: that the authors divide by, over all devices: the step's for a rate they print, and
            the model's for one they print seconds of.
    """

    table: str
    name: str
    model: Architecture
    layout: Layout
    cluster: Cluster
    seq_len: int
    software: Software
    measured_s: float
    flops: float

    @property
    def measured_flops_per_s(self) -> float:
        """Of one device, as the authors count."""
        return self.flops / (self.measured_s * self.layout.world_size)


def gpt(num_layers: int, hidden_size: int, num_heads: int) -> Architecture:
    """The papers' layer, that of GPT-2 and GPT-3."""
    return replace(
        architecture("megatron-22b"),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        vocab_size=VOCABULARY,
    )


def megatron_flops(model: Architecture, batch_size: int, seq_len: int) -> float:
    """FLOPs of a step with full recomputation: arXiv 2104.04473, section 5.1."""
    layers, h = model.num_layers, model.hidden_size
    share = 1 + seq_len / (6 * h) + model.vocab_size / (16 * layers * h)
    return 96 * batch_size * seq_len * layers * h**2 * share


def _rate(
    table: str, name: str, model: Architecture, layout: Layout, software: Software, tera: float
) -> Run:
    flops = megatron_flops(model, layout.batch_size, 2048)
    return Run(
        table=table,
        name=name,
        model=model,
        layout=layout,
        cluster=SELENE,
        seq_len=2048,
        software=software,
        measured_s=flops / (layout.world_size * tera * TERA),
        flops=flops,
    )


def _layout(
    gpus: int, tp: int, pp: int, batch: int, micro_batch: int, chunks: int, **more: object
) -> Layout:
    dp = gpus // (tp * pp)
    sizes = dict(recompute="full") | more
    return Layout(
        dp=dp,
        pp=pp,
        tp=tp,
        micro_batch_size=micro_batch,
        num_micro_batches=batch // (dp * micro_batch),
        chunks=chunks,
        **sizes,  # type: ignore[arg-type]
    )


# Billions of parameters; heads, width, layers; tp, pp, GPUs, batch; TFLOP/s a GPU. Micro-batch and
# chunks are those of the authors' script, examples/sc21/run_table_1.sh in NVIDIA/Megatron-LM.
_WEAK_SCALING = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1),
)

_GPT3, _GPT530 = gpt(96, 12288, 96), gpt(105, 20480, 128)
# GPUs, batch, micro-batch; TFLOP/s a GPU.
_ZERO3 = (
    ("175B", _GPT3, 384, 1536, 4, 144),
    ("175B", _GPT3, 768, 1536, 2, 88),
    ("175B", _GPT3, 1536, 1536, 1, 44),
    ("530B", _GPT530, 640, 2560, 4, 138),
    ("530B", _GPT530, 1120, 2240, 2, 98),
    ("530B", _GPT530, 2240, 2240, 1, 48),
)
# pp, chunks, GPUs, batch; TFLOP/s a GPU. All with tp 8 and micro-batches of 1.
_PTD = (
    ("175B", _GPT3, 12, 4, 384, 1536, 153),
    ("175B", _GPT3, 12, 4, 768, 1536, 149),
    ("175B", _GPT3, 12, 4, 1536, 1536, 141),
    ("530B", _GPT530, 35, 3, 560, 2240, 171),
    ("530B", _GPT530, 35, 3, 1120, 2240, 167),
    ("530B", _GPT530, 35, 3, 2240, 2240, 159),
)
# Table 4 of arXiv 2205.05198, one layer of 22B on 8 GPUs with 4 sequences: recomputation, sequence
# parallelism; milliseconds forward, backward.
LAYER_22B = (
    ("none", False, 7.7, 11.9),
    ("none", True, 7.2, 11.8),
    ("full", False, 7.7, 19.5),
    ("selective", False, 7.7, 13.2),
    ("selective", True, 7.2, 13.1),
)
# Model, pp, chunks, GPUs, batch, micro-batch; seconds with full recomputation, and with selective
# recomputation and sequence parallelism.
_RECOMPUTATION = (
    ("22b", 1, 1, 8, 4, 4, 1.42, 1.10),
    ("175b", 8, 3, 64, 64, 1, 18.13, 13.75),
    ("530b", 35, 3, 280, 280, 1, 49.05, 37.83),
    ("1t", 64, 1, 512, 512, 1, 94.42, 71.49),
)


def _weak_scaling() -> list[Run]:
    runs = []
    for billions, a, h, layers, tp, pp, gpus, batch, tera, micro_batch, chunks in _WEAK_SCALING:
        layout = _layout(gpus, tp, pp, batch, micro_batch, chunks)
        model, name = gpt(layers, h, a), f"{billions:g}B on {gpus}"
        runs.append(_rate("megatron-weak-scaling", name, model, layout, MEGATRON, tera))
    return runs


def _zero3_and_3d() -> list[Run]:
    table, runs = "zero3-and-3d", []
    for size, model, gpus, batch, micro_batch, tera in _ZERO3:
        layout = _layout(gpus, 1, 1, batch, micro_batch, 1, zero=3)
        runs.append(_rate(table, f"ZeRO-3 {size} on {gpus}", model, layout, DEEPSPEED, tera))
    for size, model, pp, chunks, gpus, batch, tera in _PTD:
        layout = _layout(gpus, 8, pp, batch, 1, chunks)
        runs.append(_rate(table, f"PTD-P {size} on {gpus}", model, layout, MEGATRON, tera))
    return runs


def _recomputation() -> list[Run]:
    runs = []
    for size, pp, chunks, gpus, batch, micro_batch, *seconds in _RECOMPUTATION:
        model = architecture(f"megatron-{size}")
        for recompute, measured_s in zip(("full", "selective"), seconds, strict=True):
            more = dict(recompute=recompute, sequence_parallel=recompute == "selective")
            layout = _layout(gpus, 8, pp, batch, micro_batch, chunks, **more)
            run = Run(
                table="recomputation",
                name=f"{size.upper()} {recompute}",
                model=model,
                layout=layout,
                cluster=SELENE,
                seq_len=2048,
                software=MEGATRON,
                measured_s=measured_s,
                flops=training_flops(model, 2048 * batch, 2048, causal=False),
            )
            runs.append(run)
    return runs


MEGATRON_RUNS = (*_weak_scaling(), *_zero3_and_3d(), *_recomputation())
