"""A lab under nbval: given cells run in a kernel and are compared, check cells are judged outside.

pytest collects the restored notebook (notebook.py). Answer cells and given cells are nbval's own
items, in one kernel. A check cell never enters that kernel: its verdict comes from judge.py, so a
kernel that was patched, has died or hangs changes no points.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile, find_comment_markers, find_metadata_tags

from labkit.grade.answers import Source
from labkit.grade.check import find_exercise
from labkit.grade.judge import Verdict, judge
from labkit.grade.kernel import LabKernel
from labkit.grade.notebook import answers, find_pristine, read_notebook, restore

VERDICT = "labkit"  # the user property that carries a verdict, also from xdist's workers


class NotSolved(AssertionError):
    """An exercise without its points."""


class LabFile(IPyNbFile):
    """A learner's notebook of a lab that labkit knows."""

    def setup(self) -> None:
        option = self.config.option
        self.kernel = LabKernel(str(self.path.parent), option.nbval_kernel_startup_timeout)
        self.setup_sanitize_files()

    def collect(self) -> Iterator[pytest.Item]:
        notebook = read_notebook(self.path)
        found = find_pristine(notebook, self.path)
        assert found is not None, "the plugin looked"
        pristine = read_notebook(found)
        sources = answers(notebook, pristine)
        self.nb = restore(notebook, pristine)
        code = [cell for cell in self.nb.cells if cell.cell_type == "code"]
        for number, cell in enumerate(code):
            exercise_id = cell.metadata.get("check")
            if exercise_id is not None:
                yield CheckItem.from_parent(
                    self, name=exercise_id, cell=cell, answer=sources[exercise_id]
                )
            else:
                yield IPyNbCell.from_parent(
                    self,
                    name=f"Cell {number}",
                    cell_num=number,
                    cell=cell,
                    options=_options(cell, self.compare_outputs),
                )


class CheckItem(pytest.Item):
    """One exercise: passes with all its points, or fails with its message."""

    def __init__(self, *, cell: NotebookNode, answer: Source | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = cell
        self.answer = answer

    def runtest(self) -> None:
        verdict = judge(find_exercise(self.name), self.answer)
        told = {"notebook": str(self.path), **verdict.as_dict()}
        self.user_properties.append((VERDICT, told))
        if not verdict.passed:
            raise NotSolved(_explain(verdict))
        printed = "".join(output.get("text", "") for output in self.cell.outputs)
        if printed.split() != " ".join(verdict.lines).split():
            raise NotSolved(f"{self.name} now prints {verdict.lines}; release the lab again")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, NotSolved):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int, str]:
        return self.path, 0, self.name


def _explain(verdict: Verdict) -> str:
    hint = f"\nHint: {verdict.hints[0]}" if verdict.hints else ""
    return f"{verdict.key}\n{verdict.message}{hint}"


def _options(cell: NotebookNode, compare: bool) -> dict[str, Any]:
    """What nbval's own collector makes of a cell's tags and comments."""
    names = ("check", "check_exception", "skip")
    told = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    return {name: told.get(name, compare and name == "check") for name in names}
