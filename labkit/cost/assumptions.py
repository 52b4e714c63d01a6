"""What the predictions of published runs take for granted and no paper prints, as data.

Each says where the value comes from. None was fitted, but two structures were chosen with the
measurements in view, and say so; so were the rows that residuals.py fits on.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One of them.

    Args:
        tables: of published.py and published_llama.py that it touches.
        what: with its value.
        why: where it comes from.
    """

    tables: tuple[str, ...]
    what: str
    why: str


WEAK, ZERO3, RECOMPUTATION, LLAMA = TABLES = (
    *("megatron-weak-scaling", "zero3-and-3d", "recomputation"),
    "llama3",
)
MEGATRON = (WEAK, ZERO3, RECOMPUTATION)

ASSUMPTIONS = (
    Assumption(
        tables=TABLES,
        what="memory delivers 0.85 of the data sheet's bandwidth",
        why="a round number for streaming kernels; not fitted",
    ),
    Assumption(
        tables=TABLES,
        what="links deliver 0.8 of the data sheet's bandwidth to a collective, without latency",
        why="a round number for large rings; not fitted",
    ),
    Assumption(
        tables=TABLES,
        what="exchanges of tp and cp, and the optimizer, overlap with nothing",
        why="the papers tell of no overlap for tp, and Llama 3's of none for cp's all-gather",
    ),
    Assumption(
        tables=MEGATRON,
        what="gradients are summed and exchanged in 16 bits; a stage waits for its messages",
        why="mixed precision in fp16 at the time; the papers do not say",
    ),
    Assumption(
        tables=MEGATRON,
        what="norms, dropout with its residual sum, GeLU and softmax are one kernel each",
        why="arXiv 2104.04473, section 4.2, names the fused kernels; bytes a number are counted",
    ),
    Assumption(
        tables=(WEAK,),
        what="micro-batches of 16, 16, 16, 8, 4, 2, 2, 1, 1, 1; chunks 3, 2, 2, 3 from 76B to 530B",
        why="the authors' script examples/sc21/run_table_1.sh in NVIDIA/Megatron-LM",
    ),
    Assumption(
        tables=(ZERO3,),
        what="PTD-P: 4 chunks of 2 layers for 175B, 3 of one layer for 530B; micro-batches of 1",
        why="the authors' scripts of figure 12 and of table 1 for the same models",
    ),
    Assumption(
        tables=(ZERO3,),
        what="ZeRO-3 gathers weights twice a step, hidden; scatters gradients once, not hidden",
        why="chosen with the rows in view: hiding all three predicts the run on the fewest GPUs of "
        "each model 25 and 28 % too fast",
    ),
    Assumption(
        tables=(ZERO3,),
        what="ZeRO-3 exchanges at the same rate a rank on 384 to 2,240 GPUs and for both models",
        why="the least that explains seconds which do not fall with more GPUs; the rate is fitted",
    ),
    Assumption(
        tables=(LLAMA,),
        what="7 chunks a pipeline rank",
        why="the most that 126 layers on 16 ranks allow here; the paper has one layer less on the "
        "first and on the last rank, and prints no number; 4 chunks, fitted anew, err by 4 %",
    ),
    Assumption(
        tables=(LLAMA,),
        what="micro-batches of one sequence; no recomputation; sequence parallelism; weights and "
        "gradients exchanged once a step, as ZeRO-1 does",
        why="the paper's section 3.3.2 tells of training on 8K tokens without recomputation, of "
        "weights that are not gathered again and of sums over micro-batches; how often gradients "
        "travel, and what the run of 131,072 tokens does, it does not say",
    ),
    Assumption(
        tables=(LLAMA,),
        what="TFLOP/s count the causal half of attention; products attain as much inside attention",
        why="chosen with the rows in view: with all pairs the long row would be predicted 32 % too "
        "fast",
    ),
    Assumption(
        tables=(LLAMA,),
        what="400 Gbit/s a GPU between nodes, as InfiniBand NDR",
        why="the paper's RoCE, section 3.3.1; congestion is left out",
    ),
)
