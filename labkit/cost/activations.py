"""What one layer keeps for backward: the paper's count, and this course's model term by term.

The paper's GPT layer, in 16 bits, with dropout and a stored score matrix; s tokens a sequence, b
sequences, width h, a heads, t tensor-parallel ranks:

| kept                        | bytes of one rank           |
| --------------------------- | --------------------------- |
| everything, on one rank     | s·b·h·(34 + 5·a·s/h)        |
| tensor parallel             | s·b·h·(10 + 24/t + 5·a·s/(h·t)) |
| with sequence parallelism   | s·b·h·(34 + 5·a·s/h)/t      |
| selective recomputation     | the same without 5·a·s/h    |
| full recomputation          | 2·s·b·h: the layer's input  |

The course's layer is another one. RMSNorm is written in plain torch and keeps its result before
the gain. Nothing is dropped out. Attention is fused: where the paper has 5·a·s it keeps one number
a row. K and V have fewer heads, and SwiGLU has three matrices. `block_activation_terms` lists it
all, with the paper's bytes of the same part beside it and the reason for the difference. The sum is
what SavedActivations measures on a CPU, to the byte.

Source: Korthikanti et al., arXiv 2205.05198, section 4, equations 1 to 4 and table 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FP32, BF16 = 4, 2  # bytes a number
RECOMPUTE = ("none", "selective", "full")


def paper_block_activation_bytes(
    *,
    batch_size: int,
    seq_len: int,
    hidden_size: int,
    num_heads: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that one rank keeps of one GPT layer, by the paper's equations.

    Args:
        recompute: "none"; "selective", the attention core; or "full", whose input is kept whole.

    Raises:
        ValueError: for another word in `recompute`.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute {recompute!r} is not one of {RECOMPUTE}")
    stream = seq_len * batch_size * hidden_size
    if recompute == "full":
        return 2 * stream
    core = 5 * num_heads * seq_len / hidden_size if recompute == "none" else 0
    replicated = 10 / tp if sequence_parallel else 10  # norms, dropouts, inputs of the two halves
    return stream * (replicated + (24 + core) / tp)


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """The sizes that decide a layer's activations; field names are those of ModelConfig."""

    batch_size: int
    seq_len: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qk_norm: bool = False

    @property
    def tokens(self) -> int:
        return self.batch_size * self.seq_len


@dataclass(frozen=True, kw_only=True)
class ActivationTerm:
    """One part of a layer: what the paper counts for it, and what this course's model keeps."""

    part: str
    paper_bytes: int
    own_bytes: int
    why: str


def block_activation_terms(shape: BlockShape, *, autocast: bool) -> tuple[ActivationTerm, ...]:
    """Everything that one layer of labkit.model keeps for backward on a CPU, in order.

    Args:
        shape: of the layer and of the batch.
        autocast: products in bf16 over fp32 weights; otherwise all is fp32.
    """
    number = BF16 if autocast else FP32
    return (
        _norm("first norm", shape),
        _into_products("into Q, K and V", shape, 3 if autocast else 1, number),
        *_heads(shape, number, autocast),
        *_attention(shape, number),
        _norm("second norm", shape),
        _into_products("into gate and up", shape, 2 if autocast else 1, number),
        *_mlp(shape, number),
        *([_weights(shape)] if autocast else []),
    )


def block_activation_bytes(shape: BlockShape, *, autocast: bool, recompute: str = "none") -> int:
    """Bytes of one layer: the sum of the terms, or what recomputation leaves of it.

    Args:
        recompute: "none"; "selective", the two norms run again from their inputs; or "full".

    Raises:
        ValueError: for another word in `recompute`.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute {recompute!r} is not one of {RECOMPUTE}")
    if recompute == "full":
        return FP32 * shape.tokens * shape.hidden_size + rotary_table_bytes(shape)
    total = sum(term.own_bytes for term in block_activation_terms(shape, autocast=autocast))
    again = 2 * FP32 * shape.tokens * (shape.hidden_size + 1) if recompute == "selective" else 0
    return total - again


def activation_table(terms: Sequence[ActivationTerm]) -> str:
    """Plain text: one line a part with the paper's bytes, ours and the reason, then the sums."""
    rows = [("kept", "paper", "here", "why")]
    rows += [(t.part, f"{t.paper_bytes:,}", f"{t.own_bytes:,}", t.why) for t in terms]
    sums = (sum(t.paper_bytes for t in terms), sum(t.own_bytes for t in terms))
    rows.append(("all", f"{sums[0]:,}", f"{sums[1]:,}", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"{part:<{widths[0]}}  {paper:>{widths[1]}}  {own:>{widths[2]}}  {why}"
        for part, paper, own, why in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def rotary_table_bytes(shape: BlockShape) -> int:
    """Cosines and sines in fp32: one table, which all layers share."""
    return FP32 * shape.seq_len * shape.head_dim


def _norm(part: str, shape: BlockShape) -> ActivationTerm:
    stream = shape.tokens * shape.hidden_size
    return ActivationTerm(
        part=part,
        paper_bytes=2 * stream,
        own_bytes=FP32 * (2 * stream + shape.tokens),
        why="input, its result before the gain, and 1/rms, all in fp32",
    )


def _into_products(part: str, shape: BlockShape, copies: int, number: int) -> ActivationTerm:
    stream = shape.tokens * shape.hidden_size
    why = "one input" if copies == 1 else f"autocast makes {copies} copies, one a product"
    own_bytes = copies * number * stream
    return ActivationTerm(part=part, paper_bytes=2 * stream, own_bytes=own_bytes, why=why)


def _heads(shape: BlockShape, number: int, autocast: bool) -> list[ActivationTerm]:
    tokens, width, heads = shape.tokens, shape.head_dim, shape.num_heads + shape.num_kv_heads
    terms = [
        ActivationTerm(
            part="Q, K and V",
            paper_bytes=6 * tokens * shape.hidden_size,
            own_bytes=number * tokens * width * (heads + shape.num_kv_heads),
            why=f"{shape.num_kv_heads} heads of K and V for {shape.num_heads} of Q",
        ),
        ActivationTerm(
            part="cosines and sines",
            paper_bytes=0,
            own_bytes=rotary_table_bytes(shape),
            why="rotary positions; one table for all layers",
        ),
    ]
    if shape.qk_norm:  # before the rotation; the input is fp32 in either case, the result is not
        own_bytes = tokens * heads * (FP32 * (width + 1) + number * width)
        why = "input, result before the gain, 1/rms"
        terms.insert(
            0, ActivationTerm(part="norms of Q and K", paper_bytes=0, own_bytes=own_bytes, why=why)
        )
    return terms


def _attention(shape: BlockShape, number: int) -> list[ActivationTerm]:
    stream, rows = shape.tokens * shape.hidden_size, shape.tokens * shape.num_heads
    return [
        ActivationTerm(
            part="scores",
            paper_bytes=5 * rows * shape.seq_len,
            own_bytes=FP32 * rows,
            why="fused attention: one log-sum-exp a row, no matrix, no dropout",
        ),
        ActivationTerm(
            part="into O",
            paper_bytes=2 * stream,
            own_bytes=2 * number * rows * shape.head_dim,
            why="the kernel keeps its result, and O a copy with the heads side by side",
        ),
        ActivationTerm(
            part="attention's dropout", paper_bytes=stream, own_bytes=0, why="no dropout"
        ),
    ]


def _mlp(shape: BlockShape, number: int) -> list[ActivationTerm]:
    stream, hidden = shape.tokens * shape.hidden_size, shape.tokens * shape.intermediate_size
    return [
        ActivationTerm(
            part="activation",
            paper_bytes=8 * stream,
            own_bytes=3 * number * hidden,
            why="gate, silu(gate) and up, where GeLU keeps its input",
        ),
        ActivationTerm(
            part="into down",
            paper_bytes=8 * stream,
            own_bytes=number * hidden,
            why=f"hidden width {shape.intermediate_size}, not 4 times {shape.hidden_size}",
        ),
        ActivationTerm(part="MLP's dropout", paper_bytes=stream, own_bytes=0, why="no dropout"),
    ]


def _weights(shape: BlockShape) -> ActivationTerm:
    heads = 2 * shape.num_heads + 2 * shape.num_kv_heads
    rows = heads * shape.head_dim + 3 * shape.intermediate_size
    return ActivationTerm(
        part="weights in bf16",
        paper_bytes=0,
        own_bytes=BF16 * shape.hidden_size * rows,
        why="autocast's copies; the paper's weights are in 16 bits",
    )
