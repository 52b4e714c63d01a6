"""Bytes of a call by the convention, against formulas in exact fractions, for groups of 1 to 5."""

from fractions import Fraction

import pytest
import torch

from labkit.measure.convention import split_bytes, tensor_bytes, traffic

# operation → bytes sent by (payload S, ranks N, is root); "rest" divides S by N and may be rounded.
SENT = {
    "all_reduce": lambda s, n, root: Fraction(2 * (n - 1) * s, n),
    "reduce_scatter": lambda s, n, root: Fraction((n - 1) * s, n),
    "all_gather": lambda s, n, root: (n - 1) * s,
    "broadcast": lambda s, n, root: (n - 1) * s if root else 0,
    "reduce": lambda s, n, root: 0 if root else s,
    "gather": lambda s, n, root: 0 if root else s,
    "barrier": lambda s, n, root: 0,
}


@pytest.mark.parametrize("payload", [0, 1, 7, 60, 1001])
@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("operation", SENT)
def test_formulas(operation, n, payload):
    root = n - 1
    told = [traffic(operation, payload, n, rank, root) for rank in range(n)]
    wanted = [SENT[operation](payload, n, rank == root) for rank in range(n)]
    for (sent, received), exact in zip(told, wanted, strict=True):
        assert isinstance(sent, int)
        assert isinstance(received, int)
        assert abs(sent - exact) < 2
    assert sum(sent for sent, _ in told) == sum(wanted)
    assert sum(sent for sent, _ in told) == sum(received for _, received in told)


@pytest.mark.parametrize("n", range(1, 6))
def test_scatter_gives_each_rank_its_piece(n):
    piece, root = 12, n // 2
    told = [
        traffic("scatter", n * piece if rank == root else piece, n, rank, root) for rank in range(n)
    ]
    assert told == [((n - 1) * piece, 0) if rank == root else (0, piece) for rank in range(n)]


def test_an_all_to_all_keeps_its_own_share():
    matrix = [[1, 2, 3], [0, 5, 0], [7, 0, 9]]  # bytes from row to column
    for rank in range(3):
        column = [row[rank] for row in matrix]
        sent, received = traffic("all_to_all", 0, 3, rank, None, matrix[rank], column)
        assert sent == sum(matrix[rank]) - matrix[rank][rank]
        assert received == sum(column) - matrix[rank][rank]


def test_messages():
    assert traffic("send", 12, 4, 0, 1) == (12, 0)
    assert traffic("recv", 12, 4, 0, 1) == (0, 12)


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match="no operation 'allreduce'"):
        traffic("allreduce", 12, 4, 0, None)


def test_sizes_of_tensors_and_their_splits():
    x = torch.empty(6, 5, dtype=torch.bfloat16)[:, :3]  # a view: its own elements count
    assert tensor_bytes(x) == 36
    assert split_bytes(x, [1, 0, 5], 3) == (6, 0, 30)
    assert split_bytes(x, [], 3) == (12, 12, 12)
    assert split_bytes(torch.empty(0, 4), [0, 0], 2) == (0, 0)
