"""What leaves a rank is plain, and what an answer is judged by is watched.

Oracle: by construction. The functions are called here, in this process, without a world.
"""

import pytest
import torch

from labkit.grade.inside import Refused, _changed, _fingerprint, plain
from labkit.measure.events import Mark
from labkit.measure.ledger import CommLedger


class Liar(torch.Tensor):
    def __eq__(self, other):
        return True


class Words(str):
    pass


def test_plain_values_stay_as_they_are():
    value = {"a": [1, 2.5, None, "x", True], "b": (torch.float32, Mark(name="here"))}
    assert plain(value) == value


def test_a_tensor_loses_its_class_and_its_graph():
    x = (torch.ones(3, requires_grad=True) * 2).as_subclass(Liar)
    out = plain([x])[0]
    assert type(out) is torch.Tensor
    assert not out.requires_grad
    assert torch.equal(out, torch.full((3,), 2.0))


@pytest.mark.parametrize("value", [Words("x"), object(), {1}, lambda: 0, [Words("x")]])
def test_anything_else_is_refused(value):
    with pytest.raises(Refused, match=r"result\|"):
        plain(value)


def test_a_replaced_method_or_code_is_named(monkeypatch):
    before = _fingerprint()
    assert _changed(before) == ""
    with monkeypatch.context() as patch:
        patch.setattr(CommLedger, "bytes_sent", lambda ledger: 0)
        assert "CommLedger.bytes_sent" in _changed(before)
    assert _changed(before) == ""
    with monkeypatch.context() as patch:
        patch.setattr(plain, "__code__", (lambda value: value).__code__)
        assert _changed(before) == "labkit.grade.inside.plain"
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "new_name", print, raising=False)
        assert _changed(before) == ""
