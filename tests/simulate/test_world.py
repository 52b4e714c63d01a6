"""A fake world: any rank of any size, tensors without numbers, and a real world left as it was.

Oracle: what torch.distributed and torch's own FakeTensorMode say of shapes and sizes.
"""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork

from labkit.comm.mesh import Mesh
from labkit.comm.shards import finish_reduce_scatter, start_all_gather, start_reduce_scatter
from labkit.measure.events import Launch, Wait
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.simulate.world import fake_world


def test_any_place_in_a_large_mesh():
    with fake_world(1024, 8 * 77 + 3):
        mesh = Mesh(dp=128, tp=8)
        assert (mesh.coordinate("dp"), mesh.coordinate("tp")) == (77, 3)
        assert mesh.ranks("tp") == tuple(range(8 * 77, 8 * 78))
    assert not dist.is_initialized()


def test_a_value_that_nobody_can_know_is_zero_and_one_that_is_known_is_kept():
    with fake_world(2, 0):
        x = torch.rand(4)
        assert x.sum().item() == 0.0
        assert int((x * 0).long().min()) == 0
        assert not bool((x > 0.5).all())
        assert (x > 0.5).tolist() == [False] * 4
        assert torch.tensor(7).item() == 7


def test_shortcuts_have_the_shapes_and_storages_of_the_long_way():
    with fake_world(4, 1):
        flat = torch.zeros(4, 3, dtype=torch.bfloat16)
        wide = torch.zeros(3)
        views = [flat[1], *flat.unbind(), flat.detach()]
        assert {v.untyped_storage()._cdata for v in views} == {flat.untyped_storage()._cdata}
        assert [tuple(v.shape) for v in views] == [(3,)] * 5 + [(4, 3)]
        assert flat[2].storage_offset() == 6
        new = torch.empty_like(flat[1])
        assert (new.dtype, new.device.type, new.untyped_storage().nbytes()) == (
            flat.dtype,
            "cpu",
            6,
        )
        assert wide.add_(flat[1]) is wide
        assert wide.dtype == torch.float32
        with pytest.raises(RuntimeError):
            torch.zeros(3).add_(torch.zeros(4))


def test_every_message_of_an_exchange_is_heard_and_waited_for():
    with fake_world(64, 0) as answers:
        group = Mesh(dp=64).group("dp")
        with CommLedger() as ledger, EventLog() as log, answers:
            for work in start_all_gather(torch.zeros(64 * 5), group):
                work.wait()
            total = finish_reduce_scatter(
                start_reduce_scatter(torch.zeros(64 * 5), group), torch.float32
            )
    assert ledger.count("send") == ledger.count("recv") == 2 * 63
    assert ledger.bytes_sent() == ledger.bytes_received() == 2 * 63 * 20
    assert tuple(total.shape) == (5,)
    launched = {event.id for event in log.events if isinstance(event, Launch)}
    assert launched == {event.id for event in log.events if isinstance(event, Wait)}


def test_nothing_of_it_is_left_after_an_error():
    own = FakeWork.wait
    with pytest.raises(KeyError), fake_world(8, 7):
        raise KeyError
    assert FakeWork.wait is own
    assert not dist.is_initialized()
    assert torch.ones(3).sum().item() == 3.0


def test_bad_ranks_and_a_second_world():
    with pytest.raises(ValueError, match="rank 4 of a world of 4"), fake_world(4, 4):
        pass
    with fake_world(4, 0), pytest.raises(RuntimeError, match="in a world already"):
        with fake_world(2, 0):
            pass
