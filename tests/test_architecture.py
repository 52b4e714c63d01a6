"""Who may import whom. The table is the design; this test keeps the code to it.

Absolute and relative imports, `from labkit import x`, imports inside functions, third-party names
and siblings of one room are all read from the source; nothing is run.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "labkit").rglob("*.py"))

# room: (third party, rooms of labkit)
MAY_IMPORT: dict[str, tuple[set[str], set[str]]] = {
    "cost": (set(), set()),
    "measure": ({"torch"}, {"cost"}),
    "launch": ({"torch", "cloudpickle"}, {"measure"}),
    "comm": ({"torch"}, set()),
    "model": ({"torch", "safetensors"}, {"kernels"}),
    "parallel": ({"torch"}, {"comm", "kernels"}),
    "compose": (
        {"torch", "safetensors"},
        {"comm", "model", "kernels", "quant", "parallel"},
    ),
    "train": ({"torch", "tqdm"}, {"measure", "comm", "model", "parallel", "compose"}),
    "simulate": (
        {"torch"},
        {"cost", "measure", "comm", "model", "parallel", "compose", "train"},
    ),
    "viz": ({"matplotlib", "ipywidgets"}, {"cost", "measure"}),
    "grade": (
        {"pytest", "nbval", "nbformat", "nbclient", "jupyter_client", "jupytext", "torch"},
        {"cost", "measure", "launch", "comm", "kernels", "model", "quant", "parallel", "compose"}
        | {"train", "simulate", "serve"},
    ),
    "bench": ({"*"}, {"*"}),
    "cli": ({"click", "torch", "tqdm"}, {"*"}),
    "__main__": (set(), {"cli"}),
    "__init__": (set(), set()),
}
NO_SIBLINGS = {"parallel"}  # each strategy is read, and replaced, by itself
READ_THE_CORPUS = {"model", "train", "cli", "bench"}
READ_THE_ENVIRONMENT = {"launch"}


def room(path: Path) -> str:
    return path.relative_to(ROOT / "labkit").parts[0].removesuffix(".py")


def room_of_module(dotted: str) -> str:
    return dotted.split(".")[1]


def in_package(path: Path, dotted: str) -> bool:
    """Whether a strategy of several files imports one of its own."""
    package = ["labkit", *path.relative_to(ROOT / "labkit").parts[:-1]]
    return len(package) > 2 and dotted.split(".")[: len(package)] == package


def imported(path: Path, tree: ast.Module):
    """Dotted names that a file imports, relative ones resolved."""
    package = ["labkit", *path.relative_to(ROOT / "labkit").parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def strays(path: Path, source: str) -> list[str]:
    third_party, rooms = MAY_IMPORT[room(path)]
    found = []
    for name in imported(path, ast.parse(source)):
        top = name.split(".")[0]
        if top == "labkit":
            target = room_of_module(name)
            if target != room(path) and not {target, "*"} & rooms:
                found.append(name)
            if target == room(path) and target in NO_SIBLINGS and not in_package(path, name):
                found.append(name)
            if name.startswith("labkit.model.corpus") and room(path) not in READ_THE_CORPUS:
                found.append(name)
        elif top not in sys.stdlib_module_names and not {top, "*"} & third_party:
            found.append(name)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    assert strays(path, path.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from labkit.train.trainer import train",
        "from labkit import cli",
        "from ..train import trainer",
        "import numpy",
        "def f():\n    import labkit.model.transformer",
        "from labkit.model.corpus import load_corpus",
    ],
)
def test_a_planted_stray_is_found(planted):
    assert strays(ROOT / "labkit/comm/mesh.py", planted) != []


def test_a_strategy_that_imports_another_is_found():
    planted = "from labkit.parallel.data import NaiveDataParallel"
    assert strays(ROOT / "labkit/parallel/parameter_server.py", planted) != []
    assert strays(ROOT / "labkit/parallel/pipeline/stage.py", planted) != []


def test_a_strategy_of_several_files_may_import_its_own():
    own = "from labkit.parallel.pipeline.actions import Action"
    assert strays(ROOT / "labkit/parallel/pipeline/stage.py", own) == []
    assert strays(ROOT / "labkit/parallel/data.py", own) != []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_launcher_reads_the_environment(path):
    if room(path) in READ_THE_ENVIRONMENT:
        return
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
    ]
    assert reads == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path):
    """Files of at most 260 lines, functions of at most 40 beside their docstring."""
    source = path.read_text()
    assert len(source.splitlines()) <= 260
    assert [name for name, lines in function_lengths(source) if lines > 40] == []


def test_nine_in_ten_functions_are_short():
    lengths = [lines for path in FILES for _, lines in function_lengths(path.read_text())]
    assert sum(n <= 25 for n in lengths) / len(lengths) >= 0.9


def function_lengths(source: str):
    """(name, lines without the docstring) of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = node.body[0] if ast.get_docstring(node) else None
            docstring = told.end_lineno - told.lineno + 1 if told else 0
            yield node.name, node.end_lineno - node.lineno + 1 - docstring


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_is_read_from_a_path(path):
    """No torch.load without weights_only=True, no pickle.load (pitfall X1)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            assert called != "pickle.load", f"line {node.lineno}"
            if called == "torch.load":
                weights_only = [k.value for k in node.keywords if k.arg == "weights_only"]
                assert [ast.unparse(v) for v in weights_only] == ["True"], f"line {node.lineno}"
