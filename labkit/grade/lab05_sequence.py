"""Lab 05: the check of sequence parallelism, the stretch exercise.

Between the sharded products each rank has T/tp tokens. An all-gather enters the products, a
reduce-scatter leaves them, and together they send what one all-reduce sends: (tp-1)/tp S each, of
S = 8 B T D bytes. The gain of the norm sees a part of the tokens on every rank, so its gradient is
summed, 8 D bytes. At most one tensor of the width of whole sequences is kept for backward.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab05_layer import Case, judge_layers
from labkit.grade.lab05_linear import ASSERTIONS, mlp_wholes
from labkit.grade.lab05_seen import Seen, adds_up, close
from labkit.grade.lab05_whole import on_ranks

# World, tp, B, T, D, F, strided
SIZES = (
    (2, 2, 2, 4, 6, 8, False),
    (4, 2, 1, 6, 4, 12, False),
    (4, 4, 1, 8, 8, 12, True),
    (4, 4, 3, 8, 4, 4, False),
    (4, 1, 1, 3, 3, 5, False),
)


def check_sequence(learner: Learner) -> Iterator[str]:
    """The block of the bug hunt, on T/tp tokens a rank."""
    for seen in judge_layers(learner, _trials(), _cause):
        tp, size = seen.trial.tp, seen.want.output.numel()
        width = seen.want.output.shape[-1]
        whole = [s for s in seen.got["saved"] if s[-1:] == (width,)]
        kept = sum(torch.Size(s).numel() == tp * size for s in whole)
        if tp > 1 and kept > 1:
            raise CheckFailed("lab05.sequence_block.activations", got=kept, **seen.where)
    yield from (*ASSERTIONS, "activations")


def _trials() -> list[Case]:
    trials = []
    for number, (world_size, tp, B, T, D, F, strided) in enumerate(SIZES):
        size = 8 * B * T * D
        both = [("all_gather", "tp", size // tp), ("reduce_scatter", "tp", size)]
        backward = [*both, ("all_reduce", "tp", 8 * D)]
        wholes = [
            replace(whole, x_dim=1, y_dim=1, forward=both, backward=backward)
            for whole in mlp_wholes(6000 + 100 * number, world_size // tp, (B, T, D), F, True)
        ]
        note = f"{T} tokens, {T // tp} a rank, width {D}, {F} hidden units"
        trials.append(on_ranks(wholes, world_size, note, strided=strided))
    return trials


def _cause(what: str, seen: Seen) -> str:
    if what == "weight_grad gain":
        got, want = seen.got["grads"]["gain"], seen.want.grads["gain"]
        if got is not None and close(got * seen.trial.tp, want):
            return "lab05.sequence_block.gain_mean"
        return "lab05.sequence_block.gain_part" if adds_up(seen, "gain") else ""
    if what.startswith("calls"):
        when = what.removeprefix("calls ")
        large = 8 * seen.want.output.numel()
        sums = [c for c in seen.got[when] if c.operation == "all_reduce"]
        if any(call.payload_bytes >= large for call in sums):
            return "lab05.sequence_block.all_reduce"
    return ""
