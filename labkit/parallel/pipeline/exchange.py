"""What crosses the boundaries of stages: messages as data, and the exchange that carries them.

Before every action a rank posts one batch: what its last action made, and the receives of this
action and of the next one. So a message is on its way while its target still computes.

Two messages from one rank to another must be received in the order in which they were sent: gloo
would take one for the other. The schedule tells the sender's order, and receives are posted in it.

Gloo carries messages in the background: a batch need not be complete before the next one. NCCL runs
a rank's batches one after another, and then a receive posted ahead holds up the send behind it. So
on GPUs nothing is posted ahead, and a schedule has to be legal for `exchange="batched"`, which
interleaved and V-shaped ones are not: that is an error there, and no hang. Runs over NCCL need a
GPU a rank; the tests prove the order of the batches, and run gloo.

Cost: every boundary between two ranks is passed m times forward and m times backward by S bytes,
one micro-batch of its activations. A boundary inside a rank costs nothing.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from labkit.parallel.pipeline.actions import Action, Schedule
from labkit.parallel.pipeline.stage import Boundary


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a stage takes for one micro-batch: an activation if forward, else a gradient.

    Args:
        stage: the stage that takes it.
        source, target: group ranks; equal where two stages share a rank, and nothing is sent.
    """

    forward: bool
    micro_batch: int
    stage: int
    source: int
    target: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Messages that are posted together."""

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]


def given(schedule: Schedule, rank: int, action: Action) -> Message | None:
    """What an action makes for another stage; None for W, the loss and the first gradient."""
    after = schedule.stage_after(rank, action)
    if after is None:
        return None
    return Message(
        forward=action.kind == "F",
        micro_batch=action.micro_batch,
        stage=after,
        source=rank,
        target=schedule.rank_of(after),
    )


def taken(schedule: Schedule, rank: int, action: Action) -> Message | None:
    """What an action needs from another stage; None for W, the batch and the loss."""
    before = schedule.stage_before(rank, action)
    if before is None:
        return None
    return Message(
        forward=action.kind == "F",
        micro_batch=action.micro_batch,
        stage=schedule.stage(rank, action.chunk),
        source=schedule.rank_of(before),
        target=rank,
    )


def batches(schedule: Schedule, rank: int, look_ahead: int) -> list[Batch]:
    """The batch that a rank posts before each of its actions, and one after the last.

    Args:
        schedule: of all ranks; the senders' order is in their actions.
        rank: whose batches.
        look_ahead: how many actions before its turn the receive of an action is posted.
    """
    row = schedule.ranks[rank]
    coming = {source: deque(_sent(schedule, source, rank)) for source in range(schedule.num_ranks)}
    posted: set[Message] = set()
    result = []
    for number in range(len(row) + 1):
        receives: list[Message] = []
        for action in row[number : number + 1 + look_ahead]:
            message = taken(schedule, rank, action)
            while message and message.source != rank and message not in posted:
                receives.append(coming[message.source].popleft())
                posted.add(receives[-1])
        made = given(schedule, rank, row[number - 1]) if number else None
        sends = (made,) if made and made.target != rank else ()
        result.append(Batch(sends=sends, receives=tuple(receives)))
    return result


def _sent(schedule: Schedule, source: int, target: int) -> list[Message]:
    """All messages from one rank to another, in the order of sending."""
    messages = (given(schedule, source, action) for action in schedule.ranks[source])
    return [message for message in messages if message and message.target == target]


class Exchange:
    """This rank's messages of one run.

    Args:
        group: its rank r is the schedule's rank r.
        boundaries: what each stage takes, by stage.
        device: where messages arrive.
    """

    def __init__(
        self, group: dist.ProcessGroup, boundaries: Sequence[Boundary], device: torch.device
    ) -> None:
        self._group = group
        self._ranks = dist.get_process_group_ranks(group)
        self._boundaries = boundaries
        self._device = device
        self._arriving: dict[Message, tuple[torch.Tensor, dist.Work | None]] = {}
        self._made: dict[Message, torch.Tensor] = {}
        self._leaving: list[tuple[torch.Tensor, dist.Work]] = []

    def give(self, message: Message, x: torch.Tensor) -> None:
        """Hand over what an action made; it leaves with the next batch."""
        x = x.detach().contiguous()  # gloo ignores strides
        if message.source == message.target:
            self._arriving[message] = (x, None)
        else:
            self._made[message] = x

    def start(self, batch: Batch) -> None:
        """Post a batch; what has been sent by now is freed."""
        self._leaving = [(x, work) for x, work in self._leaving if not work.is_completed()]
        received = [self._buffer(message) for message in batch.receives]
        sent = [self._made.pop(message) for message in batch.sends]
        operations = [
            dist.P2POp(operation, x, self._ranks[peer], self._group)
            for operation, tensors, peers in (
                (dist.irecv, received, [message.source for message in batch.receives]),
                (dist.isend, sent, [message.target for message in batch.sends]),
            )
            for x, peer in zip(tensors, peers, strict=True)
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
        # Over NCCL a batch has one work for all its operations.
        works = works if len(works) == len(operations) else works * len(operations)
        arriving = zip(received, works, strict=False)
        self._arriving.update(zip(batch.receives, arriving, strict=True))
        self._leaving += zip(sent, works[len(received) :], strict=True)

    def take(self, message: Message) -> torch.Tensor:
        """What a message brought, once it is there."""
        x, work = self._arriving.pop(message)
        if work is not None:
            work.wait()
        return x

    def finish(self) -> None:
        """Wait until everything has left."""
        for _, work in self._leaving:
            work.wait()
        self._leaving = []

    def _buffer(self, message: Message) -> torch.Tensor:
        """Room for a message: a gradient is like the output, which the stage after takes."""
        like = self._boundaries[message.stage if message.forward else message.stage + 1]
        return torch.empty(like.shape, dtype=like.dtype, device=self._device)


def sum_shared(weight: torch.Tensor, other: int, group: dist.ProcessGroup) -> None:
    """Add up the gradients of a weight of which this rank and one more hold a copy each.

    a + b is b + a to the last bit, so equal copies stay equal under equal optimizers.

    Args:
        weight: this rank's copy.
        other: group rank of the other copy; both ranks must call this.
        group: the pipeline's.
    """
    mine = torch.zeros_like(weight) if weight.grad is None else weight.grad
    mine = mine.detach().contiguous()
    theirs = torch.empty_like(mine)
    peer = dist.get_process_group_ranks(group)[other]
    operations = [
        dist.P2POp(dist.irecv, theirs, peer, group),
        dist.P2POp(dist.isend, mine, peer, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    weight.grad = mine + theirs
