"""numbers() hands values to a page and shows nothing.

Oracle: what IPython's display was given. tests/book/test_numbers_role.py follows them to the page.
"""

import builtins
import json

import pytest
import torch

from labkit.viz.numbers import HIDDEN, numbers


@pytest.fixture
def shown(monkeypatch):
    """Everything that is displayed, as (bundle, options)."""
    calls = []
    monkeypatch.setattr(
        builtins,
        "display",
        lambda bundle, **options: calls.append((bundle, options)),
        raising=False,
    )
    return calls


def test_each_value_travels_under_its_name_and_hidden(shown):
    numbers(ring_bytes=1536, share=0.25, name="ring", total=torch.tensor(7), mean=torch.tensor(0.5))
    values = {}
    for bundle, options in shown:
        assert list(bundle) == [f"{HIDDEN}text/plain"]
        assert options["raw"]
        assert options["metadata"]["scrapbook"]["mime_prefix"] == HIDDEN
        values[options["metadata"]["scrapbook"]["name"]] = json.loads(*bundle.values())
    assert values == {"ring_bytes": 1536, "share": 0.25, "name": "ring", "total": 7, "mean": 0.5}


def test_nothing_is_printed_in_a_plain_script(monkeypatch, capsys):
    monkeypatch.delattr(builtins, "display", raising=False)
    numbers(ring_bytes=1536)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("value", [None, [1], True, {"a": 1}])
def test_value_that_no_sentence_can_hold_is_refused_before_anything_is_shown(shown, value):
    with pytest.raises(ValueError, match="wrong: a sentence takes a number or a string"):
        numbers(right=1, wrong=value)
    assert shown == []
