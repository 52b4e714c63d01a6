"""run_schedule beside torch.distributed.pipelining: same gradients and loss for four schedules.

Promised on 2 and 4 ranks with the course's model in float64: equal gradients on every rank, and no
more bytes sent to other stages than torch sends. torch finds its shapes by messages in its first
step, so messages are compared in the second.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from labkit.compose.pipeline_parallel import pipeline_stages
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import ModelConfig
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.parallel.pipeline import (
    gpipe,
    interleaved,
    one_f_one_b,
    run_schedule,
    zero_bubble_v,
)

M, ROWS, LENGTH = 4, 8, 6
PAIRS = {
    "gpipe": (gpipe, ScheduleGPipe),
    "1f1b": (one_f_one_b, Schedule1F1B),
    "interleaved": (interleaved, ScheduleInterleaved1F1B),
    "zero bubble v": (zero_bubble_v, ScheduleZBVZeroBubble),
}


def transformer():
    config = ModelConfig(
        num_layers=8,
        hidden_size=8,
        intermediate_size=12,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=13,
        max_seq_len=LENGTH,
    )
    model = Transformer(config).double()
    initialise(model, torch.Generator().manual_seed(0))
    return model


def both(group, name):
    make, theirs = PAIRS[name]
    rank = dist.get_rank(group)
    schedule = make(dist.get_world_size(group), M)
    stages = pipeline_stages(transformer(), schedule, group, (ROWS // M, LENGTH))
    peers = [
        PipelineStage(
            copy.deepcopy(stage.module),
            schedule.stage(rank, chunk),
            schedule.num_stages,
            torch.device("cpu"),
            group=group,
        )
        for chunk, stage in enumerate(stages)
    ]
    many = schedule.num_stages_per_rank > 1
    peer = theirs(peers if many else peers[0], M, loss_fn=next_token_loss)
    words = torch.randint(0, 13, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    x, targets = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    is_last = schedule.rank_of(schedule.num_stages - 1) == rank
    for _ in range(2):
        losses = [] if is_last else None
        for module in [*(s.module for s in stages), *(p.submod for p in peers)]:
            module.zero_grad()
        with CommLedger() as our_ledger:
            result = run_schedule(schedule, stages, x, targets, group, loss_fn=next_token_loss)
        with CommLedger() as ledger:
            first = (x,) if schedule.rank_of(0) == rank else ()
            peer.step(*first, target=targets if is_last else None, losses=losses)
    error = max(
        (a.grad - b.grad).abs().max().item()
        for stage, other in zip(stages, peers, strict=True)
        for a, b in zip(stage.module.parameters(), other.submod.parameters(), strict=True)
    )
    loss = torch.stack(losses).mean() if losses else None
    sent = our_ledger.bytes_sent("send"), ledger.bytes_sent("send")
    return error, result.loss, loss, sent


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_same_gradients_for_the_same_bytes(world_size, name):
    for error, ours, theirs, (our_bytes, num_bytes) in run_ranks(both, world_size, name):
        assert error < 1e-12  # float64, sums of at most 48 terms
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        assert 0 < our_bytes <= num_bytes
