"""The picture of a ring all-reduce shows what the program does.

Oracle: labkit.comm.handmade.ring_all_reduce on real ranks. Rank r's chunk c is 2**r + 100 · 4**c,
so the sum in a message tells which chunk it is and whose parts are in it.
"""

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgba

from labkit.comm import handmade
from labkit.launch import run_ranks
from labkit.viz.ring import (
    DONE,
    draw_ring_step,
    ring_all_reduce_steps,
    ring_step_alt,
    ring_step_label,
)
from labkit.viz.style import new_figure


def recorded_messages(group):
    """The number in each message that this rank sends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = []
    shift = handmade.shift

    def heard(out, received, group):
        sent.append(out.item())
        shift(out, received, group)

    handmade.shift = heard  # in this process only, which ends with the function
    x = torch.tensor([2**rank + 100 * 4**chunk for chunk in range(size)])
    handmade.ring_all_reduce(x, group)
    return sent


def parts_of(value, world_size):
    """Chunk and summed ranks, from 100 · count · 4**chunk + a sum of distinct powers of two."""
    for chunk in range(world_size):
        for bits in range(1, 2**world_size):
            if value == bits + 100 * bits.bit_count() * 4**chunk:
                return chunk, {rank for rank in range(world_size) if bits >> rank & 1}
    raise ValueError(f"{value} is no sum")


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_steps_are_those_of_the_program(world_size):
    told = run_ranks(recorded_messages, world_size)
    steps = ring_all_reduce_steps(world_size)
    assert len(steps) == 2 * (world_size - 1) + 1
    for rank, sent in enumerate(told):
        for before, step, value in zip(steps[:-1], steps[1:], sent, strict=True):
            chunk, parts = parts_of(value, world_size)
            assert (rank, (rank + 1) % world_size, chunk) in step.messages
            assert before.held[rank][chunk] == parts


@pytest.mark.parametrize("world_size", [1, 2, 4, 5])
def test_the_last_step_is_complete(world_size):
    everyone = frozenset(range(world_size))
    last = ring_all_reduce_steps(world_size)[-1]
    assert all(parts == everyone for chunks in last.held for parts in chunks)


def test_alt_text_tells_every_message_and_sum():
    steps = ring_all_reduce_steps(4)
    assert "before any message" in ring_step_alt(steps[0])
    third = ring_step_alt(steps[3])
    assert third.count("sends chunk") == 4
    assert "Complete sums: rank 0 holds 0; rank 1 holds 1; rank 2 holds 2; rank 3 holds 3." in third


def test_label_counts_complete_sums():
    labels = [ring_step_label(step) for step in ring_all_reduce_steps(4)]
    done = [0, 0, 0, 1, 2, 3, 4]
    assert labels == [f"Complete sums on each rank: {count} of 4" for count in done]


def test_drawing_fills_one_cell_for_each_part():
    step = ring_all_reduce_steps(3)[2]
    axes = new_figure(4).add_subplot()
    draw_ring_step(axes, step)
    filled = sum(len(parts) for chunks in step.held for parts in chunks)
    cells = [patch for patch in axes.patches if patch.get_facecolor()[:3] != (1, 1, 1)]
    empty = sum(patch.get_facecolor()[0] > 0.9 for patch in cells)
    assert len(axes.patches) == 3 * 9 + 3  # three grids, and a frame around each chunk that moved
    assert 27 - empty == filled
    complete = sum(patch.get_facecolor() == to_rgba(DONE) for patch in cells)
    assert complete == 9  # one whole column on each of three ranks
