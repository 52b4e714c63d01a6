"""Slices of one parameter: what two layouts have in common, number by number.

Promised: a parameter cut by any layout is put together by any other, padding is 0, each number is
copied once, and only the rows in question are read. Oracle: Split.cut of the whole tensor.
"""

from functools import partial

import pytest
import torch

from labkit.comm.split import Split
from labkit.compose.slices import Slice, fill


def slices(shape, dim, parts, shards):
    """(slice, rank of tp) of all ranks of a layout: blocks, each in even flat ranges."""
    split = Split(dim=dim, size=shape[dim], parts=parts)
    block = torch.Size([*shape[:dim], split.piece, *shape[dim + 1 :]]).numel()
    each = -(-block // shards)
    for rank in range(parts):
        for start in range(0, block, each):
            numel = min(each, block - start)
            where = dict(low=rank * split.piece, width=split.piece, start=start, numel=numel)
            yield Slice(shape=shape, dim=dim, **where), rank


def cut(full, part, rank, parts):
    split = Split(dim=part.dim, size=part.shape[part.dim], parts=parts)
    return split.cut(full, rank, parts).flatten()[part.start : part.start + part.numel]


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((7, 3), 0), ((5, 12), 1), ((2, 6, 3), 1)])
@pytest.mark.parametrize("source", [(1, 1), (2, 3), (4, 1), (3, 5)])
@pytest.mark.parametrize("target", [(1, 4), (2, 1), (4, 3), (6, 1)])
def test_any_layout_out_of_any_other(shape, dim, source, target):
    full = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    for wanted, rank in slices(shape, dim, *target):
        flat, copied = torch.zeros(wanted.numel), 0
        for there, owner in slices(shape, dim, *source):
            numbers = cut(full, there, owner, source[0])
            copied += fill(flat, wanted, there, lambda a, b, n=numbers: n[a:b])
        assert torch.equal(flat, cut(full, wanted, rank, target[0]))
        assert copied == wanted.num_real == (flat != 0).sum()


def read(numbers, lengths, first, end):
    lengths.append(end - first)
    return numbers[first:end]


def test_read_a_bit_at_a_time(monkeypatch):
    monkeypatch.setattr("labkit.compose.slices.CHUNK", 7)
    longest = []
    for shape, dim in [((50,), 0), ((9, 5), 1), ((4, 20), 1)]:
        full = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
        everything = Slice(shape=shape, dim=dim, width=shape[dim], numel=full.numel())
        for wanted, rank in slices(shape, dim, 2, 1):
            flat = torch.zeros(wanted.numel)
            fill(flat, wanted, everything, partial(read, full.flatten(), longest))
            assert torch.equal(flat, cut(full, wanted, rank, 2))
    assert max(longest) == 7


def test_only_the_rows_in_question_are_read():
    asked = []

    def read(first, end):
        asked.append((first, end))
        return torch.zeros(end - first)

    whole = Slice(shape=(100, 8), width=100, numel=800)
    wanted = Slice(shape=(100, 8), low=40, width=10, start=20, numel=30)
    assert fill(torch.zeros(30), wanted, whole, read) == 30
    assert asked == [(340, 370)]


def test_another_cut_of_the_same_numbers_is_refused():
    rows = Slice(shape=(4, 4), width=2, numel=8)
    columns = Slice(shape=(4, 4), dim=1, width=2, numel=8)
    with pytest.raises(ValueError, match=r"dimension 1 in the checkpoint.* on 0 here"):
        fill(torch.zeros(8), rows, columns, lambda a, b: torch.zeros(b - a))
