"""Answers as text: what a notebook's cells say about one exercise, and how a rank executes it.

Grading never runs a notebook. An exercise's Source is the learner's answer cell and, as far as its
names are needed, statements of the pristine notebook (its imports), definitions of the learner's
own extra cells, and the other answer cells. So a cell that crashes, hangs or patches something does
so for its own exercise alone, and for the others only if they use its names.
"""

import ast
import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BLOCKS = ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.If | ast.Try
MAGIC = re.compile(r"^[%!].*$", re.MULTILINE)  # IPython's lines, which no rank can run


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some lines of a notebook: the names that they bind and the names that they read."""

    text: str
    binds: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Source:
    """The text that makes a learner's object.

    Args:
        name: of the object.
        pieces: executed in this order, in one namespace.
    """

    name: str
    pieces: tuple[str, ...]

    def load(self) -> Any:
        """Execute the pieces, here, and return the object.

        Raises:
            NameError: if no piece defines it.
        """
        namespace: dict[str, Any] = {"__name__": "answer"}
        for number, text in enumerate(self.pieces):
            file = f"<answer {number}>"  # tracebacks find its lines under this name
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(text, file, "exec"), namespace)
        if self.name not in namespace:
            raise NameError(f"it does not define {self.name}")
        return namespace[self.name]


def whole(text: str) -> Piece:
    """A cell as one piece; a cell that is no Python binds nothing."""
    text = MAGIC.sub("", text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Piece(text=text)
    return _piece(text, tree.body)


def standing_in(name: str, text: str) -> Piece:
    """An answer of another lab, run in a namespace of its own: it binds its own name, no other."""
    run = f"_own = {{'__name__': 'answer'}}\nexec({text!r}, _own)\n{name} = _own[{name!r}]"
    return Piece(text=run, binds=frozenset({name}))


def statements(text: str) -> list[Piece]:
    """Each statement that binds a name, one a piece; loops and other blocks are left out."""
    return [
        _piece(ast.unparse(node), [node])
        for node in _body(text)
        if _bound(node) and not isinstance(node, BLOCKS)
    ]


def definitions(text: str) -> list[Piece]:
    """Functions, classes, imports, constants: what an extra cell adds without running anything."""
    return [_piece(ast.unparse(node), [node]) for node in _body(text) if _is_quiet(node)]


def choose(own: Piece, name: str, others: Iterable[Piece]) -> Source:
    """The source of one exercise: its own cell, after the other pieces whose names it needs.

    The last to bind a name wins, so nothing replaces the object that the own cell defines.
    """
    before = list(others)
    needed, chosen = set(own.reads), set[int]()
    while more := {i for i, piece in enumerate(before) if i not in chosen and piece.binds & needed}:
        chosen |= more
        needed |= {n for i in more for n in before[i].reads}
    return Source(name=name, pieces=(*(before[i].text for i in sorted(chosen)), own.text))


def _body(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(MAGIC.sub("", text)).body
    except (SyntaxError, ValueError):
        return []


def _piece(text: str, nodes: list[ast.stmt]) -> Piece:
    reads = {
        n.id
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    binds = {name for node in nodes for name in _bound(node)}
    return Piece(text=text, binds=frozenset(binds), reads=frozenset(reads))


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement of a cell binds in the notebook's namespace."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _is_quiet(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        try:
            ast.literal_eval(node.value)
        except ValueError:
            return False
        return True
    return isinstance(
        node,
        ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom,
    )
