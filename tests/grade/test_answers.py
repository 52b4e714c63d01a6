"""Which text a rank executes: the answer cell, and of the rest only what its names need.

Oracle: written by hand.
"""

import pytest

from labkit.grade.answers import Source, choose, definitions, statements, whole


def texts(pieces):
    return [piece.text for piece in pieces]


def test_statements_that_bind_a_name_are_kept():
    text = "import a.b, c as d\nprint(1)\nx, y = 1, 2\nx[0] = 3\ndef f(): pass"
    assert texts(statements(text)) == [
        "import a.b, c as d",
        "x, y = (1, 2)",
        "def f():\n    pass",
    ]


@pytest.mark.parametrize("head", ["for x in y", "while (x := y)", "with f() as x", "if (x := y)"])
def test_a_block_of_a_notebook_does_not_run_inside_an_answer(head):
    assert statements(f"{head}: serve(x)") == []


def test_definitions_are_what_runs_nothing():
    text = "import a\nx = [1, -2]\ny = f()\ndef g(): pass\nclass H: pass\na.b = 3\nfor i in x: pass"
    assert texts(definitions(text)) == [
        "import a",
        "x = [1, -2]",
        "def g():\n    pass",
        "class H:\n    pass",
    ]


def test_no_python_binds_nothing():
    assert definitions("this is text") == statements("this is text") == []
    assert whole("this is text").binds == frozenset()


def test_only_what_is_needed_is_chosen_also_at_one_remove():
    others = [
        whole("import torch"),
        whole("import pandas"),
        whole("def helper(): return second()"),
        whole("def second(): return torch"),
        whole("def answer(): return 'a rival'"),
    ]
    source = choose(whole("def answer(): return helper()"), "answer", others)
    assert source.pieces == (
        "import torch",
        "def helper(): return second()",
        "def second(): return torch",
        "def answer(): return helper()",
    )


def test_a_rival_of_the_same_name_loses():
    own = whole("def answer(n=1): return answer(n - 1) if n else 'mine'")
    assert choose(own, "answer", [whole("def answer(n=1): return 'rival'")]).load()() == "mine"


def test_magics_are_left_out():
    assert whole("%%time\n!ls\nx = 3 \\\n % 2").text == "\n\nx = 3 \\\n % 2"


def test_load_runs_the_pieces_in_one_namespace():
    assert Source(name="b", pieces=("a = 2", "b = a + 1")).load() == 3
    with pytest.raises(NameError, match="does not define c"):
        Source(name="c", pieces=("a = 2",)).load()
