"""RandomStreams: pitfall T7.

Promised: on a mesh of dp 2 × tp 2 the replicated region draws the same on tp and different on dp,
the sharded one different everywhere; a rank that draws extra numbers, outside or inside, changes
nothing after; torch's own generator is left as it was.
Oracle: equality of masks; torch.equal.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import dropout

from labkit.comm.mesh import Mesh
from labkit.launch import run_ranks
from labkit.parallel.random import RandomStreams


def mask():
    return dropout(torch.ones(64), 0.5)


def draw_masks(group, extra):
    mesh = Mesh(dp=2, tp=2)
    streams = RandomStreams(7, replica=mesh.coordinate("dp"), shard=mesh.coordinate("tp"))
    odd_one = extra and dist.get_rank(group) == 3
    masks = []
    for _ in range(2):
        for region in (streams.replicated, streams.sharded):
            if odd_one:
                torch.rand(5)
            with region():
                masks.append(mask())
                if odd_one:
                    torch.rand(3)
    return masks


@pytest.mark.parametrize("extra", [False, True])
def test_masks_agree_on_tp_only_where_replicated(extra):
    ranks = run_ranks(draw_masks, 4, extra)  # ranks 0, 1 are dp 0; 2, 3 are dp 1
    for entry in (0, 2):
        replicated = [masks[entry] for masks in ranks]
        assert torch.equal(replicated[0], replicated[1])
        assert torch.equal(replicated[2], replicated[3])
        assert not torch.equal(replicated[0], replicated[2])
        sharded = [masks[entry + 1] for masks in ranks]
        for one, other in itertools.combinations([*sharded, *replicated[::2]], 2):
            assert not torch.equal(one, other)
    assert not torch.equal(ranks[0][0], ranks[0][2]), "every entry draws anew"


def test_extra_draws_change_nothing():
    ranks = run_ranks(draw_masks, 4, False), run_ranks(draw_masks, 4, True)
    for plain, extra in zip(*ranks, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, extra, strict=True))


def test_torch_goes_on_as_if_nothing_had_happened():
    streams = RandomStreams(0, replica=0, shard=0)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with streams.sharded():
        torch.rand(9)
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(3)
    with pytest.raises(KeyError), streams.replicated():
        raise KeyError
    assert torch.equal(torch.rand(4), expected), "an error leaves the region too"


def test_a_state_brings_the_masks_back():
    streams = RandomStreams(0, replica=1, shard=2)
    with streams.sharded():
        mask()
    state = streams.state()
    with streams.sharded():
        first = mask()
    streams.load_state(state)
    with streams.sharded():
        assert torch.equal(mask(), first)
    with pytest.raises(ValueError, match=r"\['sharded'\].*replicated"):
        streams.load_state({"sharded": 1})


def test_seeds_and_places_do_not_run_into_each_other():
    masks = []
    for seed, replica, shard in itertools.product((0, 1, 11), (0, 1, 11), (0, 1)):
        with RandomStreams(seed, replica=replica, shard=shard).sharded():
            masks.append(mask())
    assert len({tuple(m.tolist()) for m in masks}) == len(masks)
