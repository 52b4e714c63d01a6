"""Lab 08: the check of reading a checkpoint under another layout.

| promise         | decided by                                                               |
| --------------- | ------------------------------------------------------------------------ |
| names           | those of the rank's stage, and no other                                  |
| bit for bit     | each tensor against the whole model's, cut for the rank                  |
| bounded reading | numbers read of each tensor: the rank's own, and not more than a rim     |
| the same tokens | four ranks of tp continue a text as the whole model does, greedily       |

The model has five layers, two KV heads and thirteen words, so stages are uneven, four ranks of tp
share KV heads, and words are padded.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from labkit.compose.tensor_parallel import tensor_parallel
from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab08_shards import ShardFiles
from labkit.model.config import ModelConfig
from labkit.model.transformer import Transformer, initialise

CONFIG = ModelConfig(
    num_layers=5,
    hidden_size=16,
    intermediate_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=13,
    max_seq_len=24,
)
Layout = tuple[int, int]  # pp, tp
CASES: tuple[tuple[Layout, Layout], ...] = (
    ((2, 2), (1, 1)),
    ((2, 2), (1, 4)),
    ((2, 2), (4, 1)),
    ((1, 4), (2, 2)),
    ((3, 1), (2, 2)),
    ((1, 4), (1, 1)),
    ((2, 4), (3, 4)),
    ((1, 1), (1, 1)),
)
PROMPT, NUM_TOKENS = (1, 5, 3), 12


@cache
def whole() -> Transformer:
    """The model that was saved."""
    model = Transformer(CONFIG)
    initialise(model, torch.Generator().manual_seed(11))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # all ones else
                parameter.mul_(torch.linspace(0.5, 1.5, len(parameter)))
            else:
                parameter.mul_(8.0)  # near a start all words are alike
    return model


@cache
def state() -> dict[str, torch.Tensor]:
    """Its tensors by name."""
    return {name: p.detach() for name, p in whole().named_parameters()}


@cache
def saved(layout: Layout) -> ShardFiles:
    """The model as the ranks of a layout save it."""
    return ShardFiles(state(), CONFIG, pp=layout[0], tp=layout[1])


def run_load_rank(group: dist.ProcessGroup, learner: Callable, cases: Sequence[Any]) -> list[Any]:
    """On one rank: what the learner loads for every rank of every new layout."""
    found = []
    for old, (pp, tp) in cases:
        files = saved(old)
        for pp_rank in range(pp):
            for tp_rank in range(tp):
                files.reads.clear()
                tensors = learner(files, pp, tp, pp_rank, tp_rank)
                found.append({"tensors": tensors, "reads": list(files.reads)})
    return found


def run_tokens(group: dist.ProcessGroup, learner: Callable) -> list[int]:
    """On four ranks of tp: the greedy continuation by what the learner loaded."""
    own = learner(saved((2, 2)), 1, 4, 0, dist.get_rank(group))
    model = tensor_parallel(whole(), group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, parameter in model.named_parameters():
            parameter.copy_(own[name])
        words = torch.tensor([PROMPT])
        for _ in range(NUM_TOKENS):
            words = torch.cat([words, model.likeliest(words)[:, -1:]], 1)
    return words[0].tolist()


def check_load_rank(learner: Learner) -> Iterator[str]:
    """Any rank of any layout, out of what another layout saved."""
    found = iter(learner.run(run_load_rank, 1, CASES)[0])
    for old, (pp, tp) in CASES:
        for pp_rank in range(pp):
            for tp_rank in range(tp):
                told = {
                    "saved": f"pp={old[0]} x tp={old[1]}",
                    "wanted": f"rank pp={pp_rank}, tp={tp_rank} of pp={pp} x tp={tp}",
                }
                seen = next(found)
                judge_tensors(seen["tensors"], (pp, tp), (pp_rank, tp_rank), told)
                judge_reads(seen["reads"], saved(old), (pp, tp), (pp_rank, tp_rank), told)
    expected = greedy()
    for rank, got in enumerate(learner.run(run_tokens, 4, timeout=20.0)):
        if got != expected:
            raise CheckFailed("lab08.load_rank.tokens", rank=rank, expected=expected, got=got)
    yield from ("names", "bits", "reads", "tokens")


@torch.no_grad()
def greedy() -> list[int]:
    """The continuation of the whole model."""
    words = torch.tensor([PROMPT])
    for _ in range(NUM_TOKENS):
        words = torch.cat([words, whole()(words)[:, -1:].argmax(-1)], 1)
    return words[0].tolist()


def judge_tensors(got: Any, layout: Layout, place: Layout, told: dict[str, Any]) -> None:
    """Names, shapes, bits."""
    files, (pp, tp), tp_rank = saved((1, 1)), layout, place[1]
    wanted = [name for name in files.names if files.stage(name, pp) == place[0]]
    if not isinstance(got, dict) or not all(isinstance(x, torch.Tensor) for x in got.values()):
        raise CheckFailed("run.type", expected="a dict of tensors by name", got=type(got).__name__)
    for key, names in (
        ("missing", [name for name in wanted if name not in got]),
        ("foreign", [name for name in got if name not in wanted]),
    ):
        if names:
            raise CheckFailed(f"lab08.load_rank.{key}", name=names[0], **told)
    for name in wanted:
        split = files.split(name, tp)
        expected = split.cut(state()[name], tp_rank, tp)
        shown = {"name": name, "expected": list(expected.shape), "got": list(got[name].shape)}
        if got[name].shape != expected.shape:
            cause = _shape_cause(got[name], expected, split.dim, name)
            raise CheckFailed(f"lab08.load_rank.{cause}", **shown, **told)
        if got[name].dtype != expected.dtype:
            kinds: dict[str, Any] = {"expected": expected.dtype, "got": got[name].dtype}
            raise CheckFailed("lab08.load_rank.dtype", name=name, **kinds, **told)
        if not torch.equal(got[name], expected):
            own = split.own_size(tp_rank, tp)
            real = torch.equal(*(x.narrow(split.dim, 0, own) for x in (got[name], expected)))
            wrong = int((got[name] != expected).sum())
            key = "lab08.load_rank." + ("rim" if real else "values")
            raise CheckFailed(key, name=name, expected=expected.numel(), got=wrong, **told)


def _shape_cause(got: torch.Tensor, expected: torch.Tensor, dim: int, name: str) -> str:
    """The likeliest mistake behind a wrong shape: the end of a message's key."""
    if got.dim() != expected.dim():
        return "shape"
    if any(got.shape[d] != expected.shape[d] for d in range(got.dim()) if d != dim):
        return "dim"
    if name.split(".")[-2] in ("embed_tokens", "lm_head"):
        return "padding"
    if got.shape[dim] % expected.shape[dim] == 0 and got.shape[dim] > expected.shape[dim]:
        return "replicas"
    return "shape"


def judge_reads(
    reads: Sequence[tuple[int, int, str, int]],
    files: ShardFiles,
    layout: Layout,
    place: Layout,
    told: dict[str, Any],
) -> None:
    """A rank reads what it holds, and at most the padding of those who saved besides."""
    for name in files.names:
        split = files.split(name, layout[1])
        line = state()[name].numel() // split.size  # numbers of one row, or column
        own = split.own_size(place[1], layout[1]) if files.stage(name, layout[0]) == place[0] else 0
        rim = files.tp if own and files.split(name, files.tp).parts > 1 else 0
        got = sum(numbers for _, _, what, numbers in reads if what == name)
        if not own * line <= got <= (own + rim) * line:
            shown = {"name": name, "expected": own * line, "got": got}
            raise CheckFailed("lab08.load_rank.read", **shown, **told)
