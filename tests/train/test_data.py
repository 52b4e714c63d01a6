"""The data order: every window once an epoch, for any number of ranks, a function of the step."""

import pytest
import torch

from labkit.model.tokenizer import BOS, EOS
from labkit.train.data import Batches, token_stream


def batches(length=103, batch_size=4, seed=0):
    return Batches(stream=torch.arange(length), batch_size=batch_size, seq_len=5, seed=seed)


def test_works_are_framed():
    assert token_stream({"a": b"\x01\x02", "b": b"\xff"}).tolist() == [
        *(BOS, 1, 2, EOS),
        *(BOS, 255, EOS),
    ]


def test_targets_are_the_inputs_one_later():
    x, y = batches().batch(3)
    assert x.shape == y.shape == (4, 5)
    assert torch.equal(y, x + 1)


def test_an_epoch_visits_every_window_once():
    b = batches(batch_size=1)
    assert b.windows_per_epoch == 19
    for epoch in range(2):
        steps = range(19 * epoch, 19 * (epoch + 1))
        starts = sorted(int(b.batch(step)[0][0, 0]) for step in steps)
        assert [s - starts[0] for s in starts] == list(range(0, 95, 5))
        assert 0 <= starts[0] < 5


def test_epochs_and_seeds_differ():
    b = batches(batch_size=19)
    assert not torch.equal(b.batch(0)[0], b.batch(1)[0])
    assert not torch.equal(b.batch(0)[0], batches(batch_size=19, seed=1).batch(0)[0])
    assert torch.equal(b.batch(1)[0], batches(batch_size=19).batch(1)[0])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_one_global_batch(world_size):
    b = batches()
    shares = [b.batch(7, rank, world_size)[0] for rank in range(world_size)]
    assert torch.equal(torch.cat(shares), b.batch(7)[0])


def test_an_uneven_share_names_both_numbers():
    with pytest.raises(ValueError, match="batch_size 4 does not divide over 3 ranks"):
        batches().batch(0, 0, 3)


def test_a_stream_too_short_names_both_numbers():
    with pytest.raises(ValueError, match=r"10 tokens has no window of 5; it needs at least 11"):
        batches(length=10)
    assert batches(length=11, batch_size=1).windows_per_epoch == 1
