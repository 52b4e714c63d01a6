"""run_ranks from the cells of a real Jupyter kernel.

One notebook is run through nbclient. The oracle is the output that each cell must show: whole, in
rank order, and with the cell's own line where it fails.
"""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "imports": """
import torch, torch.distributed as dist
from labkit.launch import RankError, RankTimeout, run_ranks
""",
    "function": """
def double(x):
    return 2 * x
""",
    "calls another cell's function": """
def total(group, x):
    x = double(x)
    dist.all_reduce(x, group=group)
    print("rank", dist.get_rank(group), "has", x.tolist())
    return x.tolist()
run_ranks(total, 2, torch.ones(2))
""",
    "lambda": "run_ranks(lambda group: dist.get_rank(group) + 10, 2)",
    "closure": """
def adder(n):
    def add(group):
        return n + dist.get_rank(group)
    return add
run_ranks(adder(5), 2)
""",
    "class": """
class Counter:
    def __init__(self, n):
        self.n = n
    def up(self):
        self.n += 1
        return self
def counts(group, counter):
    return counter.up()
[type(c) is Counter and c.n for c in run_ranks(counts, 2, Counter(1))]
""",
    "autograd function": """
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x
    @staticmethod
    def backward(ctx, dy):
        return dy, None
def gradient(group):
    x = torch.ones(1, requires_grad=True)
    Sum.apply(x, group).backward()
    return x.grad.item()
run_ranks(gradient, 2)
""",
    "error": """
def fails(group):
    if dist.get_rank(group) == 1:
        raise ValueError("of rank one")
    dist.barrier(group)
try:
    run_ranks(fails, 2)
except RankError as error:
    print(error)
""",
    "mismatch": """
def mixed(group):
    if dist.get_rank(group) == 0:
        dist.all_reduce(torch.ones(2))
try:
    run_ranks(mixed, 2)
except RankError as error:
    print(error)
""",
    "hang": """
def hangs(group):
    while dist.get_rank(group) == 1:
        pass
try:
    run_ranks(hangs, 2, timeout=0.5)
except RankTimeout as error:
    print(error)
""",
}


@pytest.fixture(scope="module")
def shown():
    """What each cell printed and returned."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    texts = []
    for cell in notebook.cells:
        kinds = {output.output_type for output in cell.outputs}
        assert "error" not in kinds, cell.outputs
        texts.append("".join(map(text_of, cell.outputs)))
    return dict(zip(CELLS, texts, strict=True))


def text_of(output):
    return output["text"] if output.output_type == "stream" else output["data"]["text/plain"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            "calls another cell's function",
            "[rank 0] rank 0 has [4.0, 4.0]\n[rank 1] rank 1 has [4.0, 4.0]\n"
            "[[4.0, 4.0], [4.0, 4.0]]",
        ),
        ("lambda", "[10, 11]"),
        ("closure", "[5, 6]"),
        ("class", "[2, 2]"),
        ("autograd function", "[1.0, 1.0]"),
    ],
)
def test_what_cells_define_runs_on_every_rank(shown, cell, expected):
    assert shown[cell] == expected


def test_an_error_shows_the_cells_line_and_the_same_text_each_time(shown):
    assert shown["error"] == (
        "rank 1 of 2 failed first: ValueError: of rank one\n\n"
        "Traceback (most recent call last):\n"
        '  File "<cell 7aadc4>", line 3, in fails\n'
        '    raise ValueError("of rank one")\n'
        "ValueError: of rank one\n"
    )


def test_the_mismatch_detector_is_on(shown):
    assert "rank 1 ended and never issued its part" in shown["mismatch"]
    assert "dist.all_reduce(torch.ones(2))" in shown["mismatch"]


def test_a_hang_shows_the_cells_line(shown):
    assert "1 of 2 ranks had not returned after 0.5 s" in shown["hang"]
    assert "rank 0: has returned" in shown["hang"]
    assert "line 3, in hangs\n    pass" in shown["hang"] or "line 2, in hangs" in shown["hang"]
