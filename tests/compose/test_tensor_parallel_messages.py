"""The course's model split over tp ranks: what is sent, and what is refused.

Promised: one all-reduce a region and way, one more for the replicas of K and V, none that carries
logits; under sequence parallelism the same regions in pieces, and one all-reduce for all gains.
Sizes that do not divide are refused on every rank, before anything is sent.
Oracle: counts and bytes worked out by hand.
"""

import pytest
import torch

from labkit.compose.tensor_parallel import tensor_parallel
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from tests.compose.test_tensor_parallel import LAYERS, batch, whole


def one_step_calls(group, sequence, kv_heads):
    model = tensor_parallel(whole(num_kv_heads=kv_heads), group, sequence=sequence)
    x, y = batch()
    with CommLedger() as forward:
        loss = model.loss(x, y)
    with CommLedger() as backward:
        loss.backward()
    return [
        [(op.operation, op.axis, op.payload_bytes) for op in each.ops]
        for each in (forward, backward)
    ]


STREAM = 2 * 8 * 32 * 8  # bytes of [B, T, D] in float64
TOKENS = 2 * 8 * 8  # bytes of one number a token


@pytest.mark.parametrize(("world_size", "kv_heads"), [(2, 2), (4, 2), (4, 4)])
def test_messages_of_a_step(world_size, kv_heads):
    """One all-reduce a region and way, one for the replicas of K and V; no message has logits."""
    region = ("all_reduce", "world", STREAM)
    loss = [("all_reduce", "world", TOKENS), ("all_reduce", "world", 2 * TOKENS)]
    kv = [("all_reduce", "kv", 2 * 4 * 32 * 8)] * (kv_heads < world_size)
    for forward, backward in run_ranks(one_step_calls, world_size, False, kv_heads):
        assert forward == [region] * (1 + 2 * LAYERS) + loss
        assert sorted(backward) == sorted([region] * (2 * LAYERS + 1) + kv * LAYERS)


@pytest.mark.parametrize("world_size", [2, 4])
def test_messages_of_a_step_with_sequence_parallelism(world_size):
    """Regions exchange S in pieces; the gains of all norms take one all-reduce together."""
    piece = STREAM // world_size
    gains = ("all_reduce", "world", (2 * LAYERS + 1) * 32 * 8)
    regions, hops = 2 * LAYERS + 1, world_size - 1
    for forward, backward in run_ranks(one_step_calls, world_size, True, world_size):
        assert forward.count(("all_gather", "world", piece)) == regions
        assert forward.count(("send", "world", piece)) == regions * hops
        assert len(forward) == regions * (1 + 2 * hops) + 2
        assert backward.count(("all_gather", "world", piece)) == regions
        assert backward.count(("send", "world", piece)) == 2 * regions * hops
        assert backward.count(gains) == 1
        assert len(backward) == regions * (1 + 4 * hops) + 1


def refused(group, what):
    changes = {
        "heads": {},
        "kv": dict(num_heads=6, num_kv_heads=2),
        "hidden": dict(num_heads=6, num_kv_heads=3, intermediate_size=25),
    }
    with CommLedger() as ledger:
        try:
            tensor_parallel(whole(**changes[what]), group)
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("heads", "8 heads over tp=3"),
        ("kv", "2 KV heads over tp=3"),
        ("hidden", "25 hidden units over tp=3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_on_every_rank(what, told):
    for message, calls in run_ranks(refused, 3, what):
        assert told in message
        assert calls == 0


def five_tokens(group):
    model = tensor_parallel(whole(), group, sequence=True)
    messages = []
    with CommLedger() as ledger:
        for tokens in (batch()[0][:, :5], torch.zeros(1, 18, dtype=torch.long)):
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                model(tokens)
            messages.append(str(caught.value))
    return messages, ledger.count()


def test_sequences_that_do_not_fit_are_refused():
    for messages, calls in run_ranks(five_tokens, 2):
        assert "5 tokens over tp=2" in messages[0]
        assert messages[1] == "18 tokens, but max_seq_len is 16"
        assert calls == 0
