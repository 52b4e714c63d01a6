"""Lab 05: the check of attention by heads, with fewer KV heads than query heads or ranks.

H query heads and K heads of keys and values over tp ranks; query head h reads KV head h // (H / K):

| tp    | a rank holds                   | gradients of K and V                               |
| ----- | ------------------------------ | -------------------------------------------------- |
| <= K  | H/tp query heads, K/tp KV      | its own are whole                                  |
| > K   | H/tp query heads, one KV head  | summed over the tp/K neighbours that hold this one |

S = 8 B T D bytes are all-reduced once forward and once backward over all tp ranks. Above K, both
gradients of a replicated head besides, over its holders alone.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import linear

from labkit.grade.check import Learner
from labkit.grade.lab05_layer import Case, judge_layers
from labkit.grade.lab05_linear import ASSERTIONS
from labkit.grade.lab05_seen import Seen, adds_up, close
from labkit.grade.lab05_whole import Whole, draw, on_ranks

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
# World, tp, B, T, D, query heads, KV heads, head width, strided
SIZES = (
    (2, 2, 2, 3, 6, 8, 4, 2, False),
    (4, 4, 1, 5, 8, 8, 2, 4, True),
    (4, 2, 1, 4, 6, 6, 1, 2, False),
    (4, 4, 1, 1, 4, 4, 4, 2, False),
    (4, 1, 2, 3, 5, 6, 3, 2, False),
)


def check_attention(learner: Learner) -> Iterator[str]:
    """Causal grouped-query attention; every rank has its heads and theirs only."""
    judge_layers(learner, _trials(), _cause)
    yield from (*ASSERTIONS, "replicas")


def attention(
    x: torch.Tensor,
    q_proj: torch.Tensor,
    k_proj: torch.Tensor,
    v_proj: torch.Tensor,
    o_proj: torch.Tensor,
    head_dim: int,
) -> torch.Tensor:
    """The serial layer: every product written out. x [B, T, D]."""
    q, k, v = (
        linear(x, weight).unflatten(-1, (-1, head_dim)) for weight in (q_proj, k_proj, v_proj)
    )  # [B, T, heads, d]
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for t in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) / head_dim**0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)  # [B, H, T, T]
    return linear(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2), o_proj)


def _trials() -> list[Case]:
    trials = []
    for number, (world_size, tp, B, T, D, heads, kv_heads, d, strided) in enumerate(SIZES):
        pieces, replicas = min(tp, kv_heads), max(1, tp // kv_heads)
        one = ("all_reduce", "tp", 8 * B * T * D)
        shared = ("all_reduce", "replicas", 2 * 8 * D * d * kv_heads // pieces)
        shapes = ((heads * d, D), (kv_heads * d, D), (kv_heads * d, D), (D, heads * d))
        wholes = []
        for group in range(world_size // tp):
            seed = 3000 + 100 * number + group
            x, grad, *matrices = draw(seed, (B, T, D), (B, T, D), *shapes)
            wholes.append(
                Whole(
                    function=partial(attention, head_dim=d),
                    x=x,
                    grad=grad,
                    tensors=dict(zip(NAMES, matrices, strict=True)),
                    dims={"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1},
                    pieces={"k_proj": pieces, "v_proj": pieces},
                    forward=[one],
                    backward=[one, shared] if replicas > 1 else [one],
                )
            )
        note = f"x [{B}, {T}, {D}], {heads} query and {kv_heads} KV heads of {d}"
        trials.append(
            on_ranks(wholes, world_size, note, rest=(d,), replicas=replicas, strided=strided)
        )
    return trials


def _cause(what: str, seen: Seen) -> str:
    kind, _, name = what.partition(" ")
    if kind == "shard":
        return _shard_cause(name, seen)
    if kind == "calls":
        operations = {call.operation for call in seen.got[name]}
        if "all_gather" in operations:
            return "lab05.attention.gathered"
        many = sum(call.axis == "tp" for call in seen.got[name]) > 1
        return "lab05.attention.reduced_often" if many and name == "backward" else ""
    return _kv_cause(name, seen) if name in ("k_proj", "v_proj") else ""


def _shard_cause(name: str, seen: Seen) -> str:
    trial, rank, got = seen.trial, seen.rank, seen.got["parameters"]
    if trial.tp == 1:
        return ""
    whole = dict(zip(NAMES, trial.parts[rank].whole, strict=True))
    fused = torch.cat([x for x in list(whole.values())[:3] if x is not None])
    mine = [got[key] for key in NAMES[:3]]
    same_width = {x.shape[1:] for x in mine} == {fused.shape[1:]}
    if same_width and close(torch.cat(mine), fused.chunk(trial.tp)[trial.place(rank)]):
        return "lab05.attention.fused"
    if name not in ("k_proj", "v_proj"):
        return ""
    if got[name].shape == seen.want.shards[name].shape:
        return "lab05.attention.kv_heads"
    return "lab05.attention.kv_bytes" if len(got[name]) > len(seen.want.shards[name]) else ""


def _kv_cause(name: str, seen: Seen) -> str:
    got, want, trial = seen.got["grads"][name], seen.want.grads[name], seen.trial
    if trial.tp == 1 or got is None:
        return ""
    everybody = sum(other.grads[name] for other in seen.wants[:: trial.replicas])
    if close(got, torch.as_tensor(everybody)):
        return "lab05.attention.kv_grad_everybody"
    places = [trial.members(seen.rank).index(rank) for rank in trial.sharers(seen.rank)]
    if len(places) > 1 and adds_up(seen, name, places):
        return "lab05.attention.kv_grad_part"
    mean = trial.replicas > 1 and close(got * trial.replicas, want)
    return "lab05.attention.kv_grad_mean" if mean else ""
