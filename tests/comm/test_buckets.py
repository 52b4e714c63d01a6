"""Buckets against slices of one long tensor.

Promised: a round trip keeps every element; views share the buffer's memory; tensors stay whole and
in order; no bucket above the limit but that of one larger tensor; one dtype and device in each. No
sums are taken, so comparisons are exact.
"""

import pytest
import torch

from labkit.comm.buckets import assign_buckets, flatten, unflatten


def tensors(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (), (0, 2), (5,), (2, 1, 3)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_there_and_back(dtype):
    originals = [x.T if x.dim() == 2 else x for x in tensors(dtype)]  # some are strided
    flat = flatten(originals)
    assert flat.dtype == dtype
    assert flat.tolist() == [value for x in originals for value in x.flatten().tolist()]
    for piece, original in zip(unflatten(flat, originals), originals, strict=True):
        assert torch.equal(piece, original)


def test_the_buffer_is_new_and_its_pieces_are_views():
    originals = tensors()
    flat = flatten(originals[:1])
    flat.zero_()
    assert originals[0].all(), "flatten must copy, one tensor too"
    flat = flatten(originals)
    pieces = unflatten(flat, originals)
    pieces[3].fill_(7)
    assert (flat == 7).sum() == 5
    flat.zero_()
    assert not any(piece.any() for piece in pieces)


def test_no_gradient_flows_through_a_buffer():
    assert not flatten([torch.ones(2, requires_grad=True)]).requires_grad


def test_flatten_names_both_kinds():
    with pytest.raises(ValueError, match=r"tensor 1 is torch.float16 .* 0 is torch.float32 on cpu"):
        flatten([torch.ones(1), torch.ones(1, dtype=torch.float16)])
    with pytest.raises(ValueError, match=r"tensor 2 is torch.float32 on meta, .* on cpu"):
        flatten([torch.ones(1), torch.ones(2), torch.ones(1, device="meta")])
    with pytest.raises(ValueError, match="0 tensors"):
        flatten([])


@pytest.mark.parametrize("shape", [(11,), (13,), (3, 4)])
def test_unflatten_names_both_sizes(shape):
    with pytest.raises(ValueError, match=rf"shape \({shape[0]}.* for 12 elements"):
        unflatten(torch.ones(shape), [torch.ones(3, 3), torch.ones(3)])


def sized(*counts, dtype=torch.float32):
    return [torch.empty(count, dtype=dtype) for count in counts]


@pytest.mark.parametrize(
    ("counts", "limit", "forward", "backward"),
    [
        ((2, 2, 2, 2), 16, [[0, 1], [2, 3]], [[3, 2], [1, 0]]),  # exactly full
        ((2, 2, 2), 15, [[0], [1], [2]], [[2], [1], [0]]),  # one byte short
        ((1, 9, 1, 1), 8, [[0], [1], [2, 3]], [[3, 2], [1], [0]]),  # a large one stays alone
        ((0, 0, 9, 0), 8, [[0, 1], [2], [3]], [[3], [2], [1, 0]]),  # nothing fits beside it
        ((1, 2, 3), 1000, [[0, 1, 2]], [[2, 1, 0]]),
        ((), 8, [], []),
    ],
)
def test_buckets_by_hand(counts, limit, forward, backward):
    assert assign_buckets(sized(*counts), limit) == forward
    assert assign_buckets(sized(*counts), limit, reverse=True) == backward


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 37, 64, 10_000])
def test_every_tensor_once_in_order_within_the_limit(limit, reverse):
    g = torch.Generator().manual_seed(limit)
    many = sized(*torch.randint(0, 20, (50,), generator=g).tolist())
    buckets = assign_buckets(many, limit, reverse=reverse)
    order = [i for bucket in buckets for i in bucket]
    assert order == (list(range(50))[::-1] if reverse else list(range(50)))
    filled = [sum(4 * many[i].numel() for i in bucket) for bucket in buckets]
    for size, bucket in zip(filled, buckets, strict=True):
        assert size <= limit or len(bucket) == 1
    for size, following in zip(filled, buckets[1:], strict=False):
        assert size + 4 * many[following[0]].numel() > limit, "it would have fitted"


def test_a_bucket_never_mixes_dtypes():
    mixed = [*sized(1, 1), *sized(1, 1, dtype=torch.bfloat16), *sized(1)]
    buckets = assign_buckets(mixed, 100)
    assert buckets == [[0, 1], [2, 3], [4]]
    for bucket in buckets:
        flatten([mixed[i] for i in bucket])


def test_a_bucket_of_no_bytes_is_an_error():
    with pytest.raises(ValueError, match="bucket_bytes is 0, the least is 1"):
        assign_buckets([], 0)
