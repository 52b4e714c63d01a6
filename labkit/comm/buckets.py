"""Many tensors in one flat buffer, and which tensors share a buffer.

A message costs alpha + bytes * beta. One message a tensor pays alpha for each; one message for
everything cannot start before the last tensor is ready. Buckets lie between. They hold whole
tensors, in order.
Source: PyTorch Distributed (arXiv 2006.15704), section 3.2.3.
"""

from collections.abc import Sequence

import torch


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copy tensors one after another into a new flat buffer, each in row-major order.

    Raises:
        ValueError: if there is none, or they differ in dtype or device.
    """
    if not tensors:
        raise ValueError("nothing to flatten: 0 tensors have no dtype")
    first = tensors[0]
    for i, tensor in enumerate(tensors):
        if _kind(tensor) != _kind(first):
            kinds = [f"{t.dtype} on {t.device}" for t in (tensor, first)]
            raise ValueError(f"tensor {i} is {kinds[0]}, tensor 0 is {kinds[1]}")
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])  # [sum of sizes]


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut a flat buffer into tensors of the shapes of `like`: views, which share its memory.

    Raises:
        ValueError: if the buffer does not hold as many elements as the tensors.
    """
    sizes = [tensor.numel() for tensor in like]
    if flat.shape != (sum(sizes),):
        raise ValueError(f"buffer of shape {tuple(flat.shape)} for {sum(sizes)} elements")
    pieces = flat.split(sizes)
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def assign_buckets(
    tensors: Sequence[torch.Tensor], bucket_bytes: int, *, reverse: bool = False
) -> list[list[int]]:
    """Group tensors, in order, into buckets of at most `bucket_bytes`.

    A tensor larger than that is alone in its bucket. A bucket never mixes dtypes or devices, so
    that each can be flattened.

    Args:
        tensors: parameters, say, in the order of the forward pass.
        bucket_bytes: limit of a bucket.
        reverse: last tensor first, the order in which backward finishes gradients.

    Returns:
        Positions in `tensors`, by bucket.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}, the least is 1")
    order = range(len(tensors))
    buckets: list[list[int]] = []
    filled = 0
    for i in reversed(order) if reverse else order:
        size = tensors[i].numel() * tensors[i].element_size()
        same_kind = bool(buckets) and _kind(tensors[buckets[-1][0]]) == _kind(tensors[i])
        if same_kind and filled + size <= bucket_bytes:
            buckets[-1].append(i)
            filled += size
        else:
            buckets.append([i])
            filled = size
    return buckets


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device
