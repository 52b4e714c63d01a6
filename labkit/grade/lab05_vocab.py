"""Lab 05: the checks of the two embeddings and of the loss over split logits.

V words of width D over tp ranks; V is filled up to a multiple of tp. n = B T tokens:

| exercise         | a rank holds    | forward                           | backward |
| ---------------- | --------------- | --------------------------------- | -------- |
| HiddenEmbedding  | [V, D/tp]       | one all-gather, 8 n D/tp          | -        |
| VocabEmbedding   | [ceil(V/tp), D] | one all-reduce, 8 n D             | -        |
| split_loss       | -               | a few numbers a token in any call | the same |

The logits of padding words are large where the loss is judged: one that joins the softmax shows.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy, embedding

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab05_layer import Case, judge_layers
from labkit.grade.lab05_ranks import Part, Trial, run_function
from labkit.grade.lab05_seen import Seen, Want, close
from labkit.grade.lab05_whole import Whole, cut, draw, on_ranks, told_groups

# World, tp, B, T, words, width. 259 words do not divide; 5 leave one of four ranks padding alone.
EMBEDDINGS = (
    (2, 2, 2, 9, 259, 6),
    (4, 2, 1, 12, 11, 8),
    (4, 4, 1, 11, 11, 8),
    (4, 4, 1, 1, 259, 4),
    (4, 4, 2, 3, 5, 4),
    (4, 1, 2, 3, 7, 3),
)
# World, tp, B, T, words. The first one has neither ignored tokens nor large logits.
LOSSES = (
    (2, 2, 2, 6, 259),
    (2, 2, 1, 7, 11),
    (4, 2, 1, 12, 11),
    (4, 4, 2, 5, 259),
    (4, 4, 1, 3, 5),
    (4, 1, 2, 3, 7),
)
IGNORED = -100
PADDING_LOGIT = 9.0  # above any real one
FEW = 4  # numbers a token: a maximum, a sum and a logit, and one to spare


def check_hidden_embedding(learner: Learner) -> Iterator[str]:
    """Every rank looks up all words, in its own columns."""
    judge_layers(learner, _embedding_trials(dim=1), _hidden_cause)
    yield from ("shards", "output", "gradients", "one_all_gather")


def check_vocab_embedding(learner: Learner) -> Iterator[str]:
    """Every rank looks up its own words; the sum has each row once."""
    judge_layers(learner, _embedding_trials(dim=0), _vocab_cause)
    yield from ("shards", "padding", "output", "gradients", "one_all_reduce")


def words(seed: int, B: int, T: int, num_words: int, tp: int) -> torch.Tensor:
    """Random words, the first and last of every rank's piece among them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(num_words, (B * T,), generator=generator)
    piece = -(-num_words // tp)
    edges = [e for s in range(0, num_words, piece) for e in (s, min(s + piece, num_words) - 1)]
    drawn[: len(edges)] = torch.tensor(edges[: B * T])
    return drawn.view(B, T)


def _embedding_trials(dim: int) -> list[Case]:
    trials = []
    for number, (world_size, tp, B, T, V, D) in enumerate(EMBEDDINGS):
        size = 8 * B * T * D
        wholes = []
        for group in range(world_size // tp):
            seed = 4000 + 100 * number + group
            table, grad = draw(seed, (V, D), (B, T, D))
            wholes.append(
                Whole(
                    function=embedding,
                    x=words(seed, B, T, V, tp),
                    grad=grad,
                    tensors={"weight": table},
                    dims={"weight": dim},
                    forward=[
                        ("all_gather", "tp", size // tp) if dim else ("all_reduce", "tp", size)
                    ],
                )
            )
        trials.append(on_ranks(wholes, world_size, f"{B * T} of {V} words, width {D}"))
    return trials


def _hidden_cause(what: str, seen: Seen) -> str:
    if what == "calls forward":
        calls = seen.got["forward"]
        if any(call.operation == "all_reduce" for call in calls):
            return "lab05.hidden_embedding.all_reduce"
        return "lab05.hidden_embedding.table" if calls else ""
    return "lab05.hidden_embedding.backward" if what == "calls backward" else ""


def _vocab_cause(what: str, seen: Seen) -> str:
    got, want = seen.got, seen.want
    shard = want.shards["weight"]
    num_words = seen.trial.parts[seen.rank].whole[0].shape[0]  # type: ignore[union-attr]
    if what == "shard weight":
        if len(got["parameters"]["weight"]) == num_words // seen.trial.tp != len(shard):
            return "lab05.vocab_embedding.tail"
        filled = got["parameters"]["weight"].shape == shard.shape
        return "lab05.vocab_embedding.padding" if filled and _only_padding(seen) else ""
    if what == "output" and isinstance(got["output"], torch.Tensor):
        if got["output"].shape != want.output.shape:
            return ""
        if close(sum(of["output"] for of in seen.group), want.output):
            return ""  # a part of the sum: that has a message of its own
        wrong = (got["output"] - want.output).abs().amax(-1) > 0
        asked = seen.trial.parts[seen.rank].inputs[0][wrong] % len(shard)
        at_edges = bool(((asked == 0) | (asked == len(shard) - 1)).all())
        return f"lab05.vocab_embedding.{'edge' if at_edges else 'mask'}"
    return "lab05.vocab_embedding.table" if what.startswith("calls") else ""


def _only_padding(seen: Seen) -> bool:
    """The rows that differ are those that should be zero."""
    shard, got = seen.want.shards["weight"], seen.got["parameters"]["weight"]
    wrong = (shard != got).any(-1)
    return bool((shard[wrong] == 0).all())


def check_split_loss(learner: Learner) -> Iterator[str]:
    """The mean loss of all words that count, and its gradient in this rank's logits."""
    cases = [_loss_trial(number, *sizes) for number, sizes in enumerate(LOSSES)]
    for seen in judge_layers(learner, cases, _loss_cause, run_function):
        shape = seen.trial.parts[seen.rank].inputs[0].shape
        tokens, logits = shape[:2].numel(), shape[-1]
        for call in (*seen.got["forward"], *seen.got["backward"]):
            if call.payload_bytes > FEW * 8 * tokens and logits > 2 * FEW:
                told = {"operation": call.operation, "got": call.payload_bytes / 8 / tokens}
                raise CheckFailed("lab05.split_loss.gathered", logits=logits, **told, **seen.where)
    yield from ("loss", "gradients", "padding", "few_numbers")


def _loss_trial(number: int, world_size: int, tp: int, B: int, T: int, V: int) -> Case:
    parts, wants = [], []
    blank = Trial(world_size=world_size, tp=tp, told="", parts=())
    for rank in range(world_size):
        seed = 5000 + 100 * number + rank % (world_size // tp)
        logits, labels = loss_inputs(seed, B, T, V, tp, number)
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy(leaf.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        grad = torch.tensor(3.0, dtype=torch.float64)
        (whole_grad,) = torch.autograd.grad(loss, leaf, grad)
        own, own_grad = (cut(x, -1, tp, blank, rank) for x in (logits, whole_grad))
        start = blank.place(rank) * own.shape[-1]
        own[..., max(0, V - start) :] = PADDING_LOGIT
        parts.append(Part(whole=(), inputs=(own, labels), grad=grad))
        wants.append(
            Want(
                output=loss.detach(),
                input_grads=(own_grad, None),
                shards={},
                grads={},
                forward=None,
                backward=None,
            )
        )
    ignored = int((parts[0].inputs[1] == IGNORED).sum())
    note = f"{B * T} tokens, {ignored} of them ignored, {V} words"
    told = f"{told_groups(world_size, tp)}, {note}"
    trial = replace(blank, told=told, parts=tuple(parts), rest=(V,), strided=number == 3)
    return trial, wants


def loss_inputs(
    seed: int, B: int, T: int, V: int, tp: int, number: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, T, V] and labels [B, T]; from the second trial on some are ignored, some large."""
    (logits,) = draw(seed, (B, T, V))
    logits = logits * V**0.5
    labels = words(seed, B, T, V, tp)
    if number:
        labels[0, ::3] = IGNORED
        logits[:, 1] += 800.0  # exp overflows in float64 above 709
    return logits, labels


def _loss_cause(what: str, seen: Seen) -> str:
    got, want = seen.got["output"], seen.want
    if what != "output" or not isinstance(got, torch.Tensor) or got.shape != want.output.shape:
        return ""
    if not bool(torch.isfinite(got)):
        return "lab05.split_loss.overflow"
    causes = [cause for cause, loss in likely_losses(seen).items() if close(got, loss)]
    return f"lab05.split_loss.{causes[0]}" if causes else "lab05.split_loss.loss"


def likely_losses(seen: Seen) -> dict[str, torch.Tensor]:
    """Wrong losses that have a message of their own."""
    pieces = [seen.trial.parts[r].inputs[0] for r in seen.trial.members(seen.rank)]
    labels = seen.trial.parts[seen.rank].inputs[1]
    V, place, own = seen.trial.rest[0], seen.trial.place(seen.rank), pieces[0].shape[-1]
    padded = torch.cat(pieces, -1)
    logits = padded[..., :V]
    counted = labels != IGNORED
    target = logits.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    mine = logits[..., place * own : (place + 1) * own]
    tops = [p.amax(-1) for p in logits.split(own, -1)]
    local_sums = sum(
        (p - top[..., None]).exp().sum(-1)
        for p, top in zip(logits.split(own, -1), tops, strict=True)
    )
    whole, held = logits.logsumexp(-1), (labels >= place * own) & (labels < (place + 1) * own)
    top = tops[min(place, len(tops) - 1)]

    def mean(losses: torch.Tensor) -> torch.Tensor:
        return losses[counted].mean()

    return {
        "padding": mean(padded.logsumexp(-1) - target),
        "ignored": ((whole - target) * counted).mean(),
        "ignored_zero": (whole - target * counted).mean(),
        "local_sum": mean(mine.logsumexp(-1) - target),
        "local_maximum": mean(torch.as_tensor(local_sums).log() + top - target),
        "target": mean(whole - target * held),
        "sum": (whole - target)[counted].sum(),
    }
