"""Which tokens are where: shards, positions, and the way back.

Promised: positions are those of the tokens in the shard; unshard undoes shard to the bit, gradients
too; zigzag is chunks r and 2 cp-1-r; what does not divide is refused before anything is sent.
Oracle: token numbers written out by hand.
"""

import pytest
import torch

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.context import chunks_of, positions, shard_sequence, unshard_sequence

BY_HAND = {
    (2, "zigzag"): [[0, 1, 2, 9, 10, 11], [3, 4, 5, 6, 7, 8]],
    (2, "contiguous"): [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],
    (3, "zigzag"): [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]],
    (1, "zigzag"): [list(range(12))],
}


def there_and_back(group, layout):
    tokens = torch.arange(24).view(2, 12)  # [B, T]
    x = torch.stack([tokens, -tokens], -1).double().requires_grad_()  # [B, T, 2]
    shard = shard_sequence(x, group, layout=layout)
    assert torch.equal(shard[..., 0].long(), shard_sequence(tokens, group, layout=layout))
    back = unshard_sequence(shard, group, layout=layout)
    assert torch.equal(back, x)
    back.backward(x.detach() + 1)
    assert torch.equal(x.grad, x.detach() + 1)
    placed = positions(12, group, layout=layout)
    assert torch.equal(shard[0, :, 0].long(), placed)
    return placed.tolist()


@pytest.mark.parametrize(("world_size", "layout"), BY_HAND)
def test_positions_are_those_of_the_tokens(world_size, layout):
    assert run_ranks(there_and_back, world_size, layout) == BY_HAND[world_size, layout]


def test_zigzag_pairs_an_early_chunk_with_a_late_one():
    assert [chunks_of(rank, 4, "zigzag") for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]


def refused(group, length, layout):
    messages = []
    with CommLedger() as ledger:
        for call in (
            lambda: positions(length, group, layout=layout),
            lambda: shard_sequence(torch.zeros(1, length), group, layout=layout),
            lambda: unshard_sequence(torch.zeros(1, length // 2), group, layout=layout),
        ):
            with pytest.raises(ValueError, match="tokens over cp=") as caught:
                call()
            messages.append(str(caught.value))
    return messages, ledger.count()


def test_ten_tokens_over_two_ranks_in_zigzag_are_refused():
    words = (
        "10 tokens over cp=2: zigzag cuts a sequence into 4 chunks; pad it to a multiple of 4, or "
        'use "contiguous" (2 chunks)'
    )
    assert run_ranks(refused, 2, 10, "zigzag") == [([words] * 3, 0)] * 2


def odd(group):
    with pytest.raises(ValueError, match=r"7 tokens over cp=2: contiguous .* pad it to a multiple"):
        positions(7, group, layout="contiguous")
    return True


def test_seven_tokens_over_two_ranks_are_refused():
    assert run_ranks(odd, 2) == [True, True]
