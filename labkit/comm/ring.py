"""Exchange around a ring, in two halves, so that work can be done in between.

    exchange = start([k, v], group)      # on its way to the next rank
    out = attend(q, k, v)                # meanwhile
    k, v = finish(exchange)              # those of the rank before

After N-1 such steps every rank has seen the tensors of every other, and has sent (N-1) S bytes.
Source: ring attention (arXiv 2310.01889), section 3; ring-flash-attention's RingComm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Messages on their way. It keeps the tensors that are being sent alive."""

    sent: list[torch.Tensor]
    received: list[torch.Tensor]
    works: list[dist.Work]


def start(
    tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, *, reverse: bool = False
) -> Exchange:
    """Begin to send tensors to the next rank of the group and to receive the previous rank's.

    Args:
        tensors: of the same shapes and dtypes on every rank, any strides; leave them as they are
            until `finish`.
        group: its order is the ring's.
        reverse: send to the previous rank instead, and receive from the next.
    """
    if isinstance(tensors, torch.Tensor):
        raise ValueError("start takes a list of tensors, and got one tensor")
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    before, after = ranks[place - 1], ranks[(place + 1) % len(ranks)]
    source, target = (after, before) if reverse else (before, after)
    sent = [tensor.detach().contiguous() for tensor in tensors]
    if source == dist.get_rank():  # a rank that is its own neighbour: no link to use
        return Exchange(sent=sent, received=[tensor.clone() for tensor in sent], works=[])
    received = [torch.empty_like(tensor) for tensor in sent]
    receives = [dist.P2POp(dist.irecv, tensor, source, group) for tensor in received]
    sends = [dist.P2POp(dist.isend, tensor, target, group) for tensor in sent]
    works = dist.batch_isend_irecv(receives + sends) if sent else []
    return Exchange(sent=sent, received=received, works=works)


def finish(exchange: Exchange) -> list[torch.Tensor]:
    """Wait for the messages, and return what arrived, in the order of `start`."""
    for work in exchange.works:
        work.wait()
    return exchange.received
