"""Llama 3's published speed, as data, and all published runs together.

Three ways to train the 405B model on H100s, by Meta: arXiv 2407.21783, version 3, table 4. What it
prints is TFLOP/s a GPU of model FLOPs. It does not say how attention is counted: here by the causal
half, which matters in the row of 131,072 tokens, where attention is 40 % of the work.
"""

from labkit.cost.architecture import architecture
from labkit.cost.cluster import Cluster
from labkit.cost.counting import training_flops
from labkit.cost.hardware import device, link
from labkit.cost.layout import Layout
from labkit.cost.published import MEGATRON_RUNS, TERA, Run
from labkit.cost.software import TODAY

META = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))

# dp, cp, tokens a sequence, sequences a replica; TFLOP/s a GPU. All with tp 8 and pp 16.
_LLAMA3 = ((64, 1, 8192, 32, 430), (128, 1, 8192, 16, 400), (8, 16, 131_072, 16, 380))


def _llama3() -> list[Run]:
    model, runs = architecture("llama3-405b"), []
    for dp, cp, seq_len, m, tera in _LLAMA3:
        layout = Layout(
            dp=dp,
            pp=16,
            cp=cp,
            tp=8,
            zero=1,
            sequence_parallel=True,
            num_micro_batches=m,
            chunks=7,
        )
        flops = training_flops(model, layout.batch_size * seq_len, seq_len)
        run = Run(
            table="llama3",
            name=f"{layout.world_size} GPUs, {seq_len} tokens",
            model=model,
            layout=layout,
            cluster=META,
            seq_len=seq_len,
            software=TODAY,
            measured_s=flops / (layout.world_size * tera * TERA),
            flops=flops,
        )
        runs.append(run)
    return runs


RUNS: tuple[Run, ...] = (*MEGATRON_RUNS, *_llama3())
