"""Lab 05: the checks of the linear layers, the MLP, and the bug hunt.

S bytes of activations, [B, T, D] or [B, T, F]; nothing else is sent:

| exercise     | forward           | backward          | a rank holds                       |
| ------------ | ----------------- | ----------------- | ---------------------------------- |
| ColumnLinear | -                 | one all-reduce, S | [F/tp, D], bias [F/tp]             |
| RowLinear    | one all-reduce, S | -                 | [F, D/tp], bias [F]                |
| ShardedMLP   | one all-reduce, S | one all-reduce, S | [F/tp, D] twice, [D, F/tp]         |
| Suspect      | one all-reduce, S | one all-reduce, S | the same, and the gain [D], whole  |
"""

from collections.abc import Iterator

import torch
from torch.nn.functional import linear, rms_norm, silu

from labkit.grade.check import Learner
from labkit.grade.lab05_layer import Case, judge_layers
from labkit.grade.lab05_seen import Seen, adds_up, close
from labkit.grade.lab05_whole import Whole, draw, on_ranks

EPS = 1e-6
# World, tp, B, T, D, F, and whether tensors are strided. Two ranks come first: most mistakes show
# there. Groups of two that are not the world come next, with a wrong group or place in them. Square
# matrices hide a wrong dimension.
SIZES = (
    (2, 2, 2, 3, 6, 8, False),
    (4, 2, 1, 2, 4, 12, False),
    (4, 4, 1, 5, 8, 12, True),
    (4, 4, 1, 1, 4, 4, False),
    (4, 1, 3, 1, 3, 5, False),
)
ASSERTIONS = ("shards", "output", "gradients", "collectives")
BY_COLUMN_AND_ROW = {"gate_proj": 0, "up_proj": 0, "down_proj": 1}


def check_column(learner: Learner) -> Iterator[str]:
    """Rows of the stored matrix; the gradient of x is a sum over ranks."""
    judge_layers(learner, _linear_trials(by_rows=False), _column_cause)
    yield from ASSERTIONS


def check_row(learner: Learner) -> Iterator[str]:
    """Columns of the stored matrix; the output is a sum over ranks, and a bias is added to it."""
    judge_layers(learner, _linear_trials(by_rows=True), _row_cause)
    yield from (*ASSERTIONS, "bias_once")


def _linear_trials(by_rows: bool) -> list[Case]:
    """Linear layers, one of them without a bias."""
    trials = []
    for number, (world_size, tp, B, T, D, F, strided) in enumerate(SIZES):
        biased = number != 3
        one = [("all_reduce", "tp", 8 * B * T * (F if by_rows else D))]
        wholes = []
        for group in range(world_size // tp):
            seed = 1000 + 100 * number + group
            weight, bias, x, grad = draw(seed, (F, D), (F,), (B, T, D), (B, T, F))
            wholes.append(
                Whole(
                    function=linear,
                    x=x,
                    grad=grad,
                    tensors={"weight": weight, "bias": bias} if biased else {"weight": weight},
                    dims={"weight": 1} if by_rows else {"weight": 0, "bias": 0},
                    x_dim=-1 if by_rows else None,
                    y_dim=None if by_rows else -1,
                    forward=one if by_rows else [],
                    backward=[] if by_rows else one,
                )
            )
        note = f"x [{B}, {T}, {D}], matrix [{F}, {D}]{'' if biased else ', no bias'}"
        trials.append(on_ranks(wholes, world_size, note, strided=strided, num_whole=2))
    return trials


def _column_cause(what: str, seen: Seen) -> str:
    got, want, tp = seen.got["output"], seen.want.output, seen.trial.tp
    if what == "output" and tp > 1 and isinstance(got, torch.Tensor):
        whole = (*want.shape[:-1], tp * want.shape[-1])
        return "lab05.column_linear.gathered" if got.shape == whole else ""
    return ""


def _row_cause(what: str, seen: Seen) -> str:
    bias, tp, got = seen.want.shards.get("bias"), seen.trial.tp, seen.got
    if bias is None or tp == 1:
        return ""
    if what == "output":
        return _row_output_cause(seen, bias)
    if what == "shard bias":
        divided = close(got["parameters"]["bias"] * tp, bias)
        return "lab05.row_linear.bias_divided" if divided else "lab05.row_linear.bias_shard"
    return "lab05.row_linear.bias_grad" if what == "weight_grad bias" else ""


def _row_output_cause(seen: Seen, bias: torch.Tensor) -> str:
    got, want, tp = seen.got["output"], seen.want.output, seen.trial.tp
    if not isinstance(got, torch.Tensor) or got.shape != want.shape:
        return ""
    likely = {
        "lab05.row_linear.bias_times": got - (tp - 1) * bias,
        "lab05.row_linear.bias_missing": got + bias,
        "lab05.layer.output_divided": tp * (got - bias) + bias,
        "lab05.layer.output_part": sum(of["output"] - bias for of in seen.group) + bias,
    }
    return next((key for key, mended in likely.items() if close(mended, want)), "")


def gated(x: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
    """SwiGLU: down(silu(gate x) * up x)."""
    gate, up, down = matrices
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def normed(x: torch.Tensor, gain: torch.Tensor, *matrices: torch.Tensor) -> torch.Tensor:
    """A block of a layer: the norm, the MLP, and the residual."""
    return x + gated(rms_norm(x, gain.shape, gain, EPS), *matrices)


def check_mlp(learner: Learner) -> Iterator[str]:
    """Gate and up by columns, down by rows."""
    judge_layers(learner, _mlp_trials(with_norm=False), _mlp_cause)
    yield from ASSERTIONS


def check_suspect(learner: Learner) -> Iterator[str]:
    """The same behind a norm, with a residual: a gain that stays the same on all ranks."""
    judge_layers(learner, _mlp_trials(with_norm=True), _suspect_cause)
    yield from ASSERTIONS


def _mlp_trials(with_norm: bool) -> list[Case]:
    trials = []
    for number, (world_size, tp, B, T, D, F, strided) in enumerate(SIZES):
        wholes = mlp_wholes(2000 + 100 * number, world_size // tp, (B, T, D), F, with_norm)
        note = f"x [{B}, {T}, {D}], {F} hidden units"
        trials.append(on_ranks(wholes, world_size, note, strided=strided))
    return trials


def mlp_wholes(
    seed: int, num_groups: int, shape: tuple[int, int, int], F: int, with_norm: bool
) -> list[Whole]:
    """The serial MLP of every group, with its norm and residual if asked."""
    D, wholes = shape[-1], []
    one = [("all_reduce", "tp", 8 * torch.Size(shape).numel())]
    for group in range(num_groups):
        x, grad, gain, *matrices = draw(seed + group, shape, shape, (D,), (F, D), (F, D), (D, F))
        tensors = dict(zip(BY_COLUMN_AND_ROW, matrices, strict=True))
        wholes.append(
            Whole(
                function=normed if with_norm else gated,
                x=x,
                grad=grad,
                tensors={"gain": gain, **tensors} if with_norm else tensors,
                dims=BY_COLUMN_AND_ROW,
                forward=one,
                backward=one,
            )
        )
    return wholes


def _mlp_cause(what: str, seen: Seen) -> str:
    if not what.startswith("calls"):
        return ""
    calls = [call.operation for call in seen.got[what.removeprefix("calls ")]]
    if {"all_gather", "all_reduce"} <= set(calls):
        return "lab05.mlp.gathered"
    twice = what == "calls backward" and calls == ["all_reduce"] * 2
    return "lab05.mlp.reduced_twice" if twice else ""


def _suspect_cause(what: str, seen: Seen) -> str:
    if what == "weight_grad gain":
        return "lab05.suspect.drift" if adds_up(seen, "gain") else ""
    if what == "input_grad 0":
        extra = (seen.trial.tp - 1) * seen.trial.parts[seen.rank].grad
        got, want = seen.got["input_grads"][0], seen.want.input_grads[0]
        repeated = want is not None and close(got, want + extra)
        return "lab05.suspect.residual" if repeated else ""
    return "lab05.suspect.calls" if what.startswith("calls") else ""
