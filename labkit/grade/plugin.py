"""pytest's side of grading: `pytest --nbval mine.ipynb` restores, judges, prints points.

An entry point of the package, so that it works for a notebook anywhere. Without --nbval it does
nothing, and imports nothing but pytest.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

NBVAL_CELL_TIMEOUT_S = 2000.0  # nbval's own default
CELL_TIMEOUT_S = 120.0  # a launch inside a cell ends after 60


def pytest_configure(config: pytest.Config) -> None:
    if not getattr(config.option, "nbval", False):
        return
    if config.option.nbval_cell_timeout == NBVAL_CELL_TIMEOUT_S:
        config.option.nbval_cell_timeout = CELL_TIMEOUT_S
    config.pluginmanager.register(Grader(), "labkit-grader")


class Grader:
    """Takes the notebooks of labs from nbval, and adds up what their checks got."""

    def __init__(self) -> None:
        self.verdicts: dict[str, list[dict[str, Any]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[Any], list[Any]]:
        collectors = yield
        if file_path.suffix != ".ipynb" or not collectors:
            return collectors
        from labkit.grade.labfile import LabFile
        from labkit.grade.notebook import find_pristine, read_notebook

        try:
            known = find_pristine(read_notebook(file_path), file_path)
        except ValueError:
            return collectors  # no notebook: nbval says so
        return [LabFile.from_parent(parent, path=file_path)] if known else collectors

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for name, told in report.user_properties:
            if name == "labkit" and isinstance(told, dict):
                plain_pass = report.outcome == "passed" and not hasattr(report, "wasxfail")
                if not plain_pass:
                    told = {**told, "points": 0}
                self.verdicts.setdefault(told["notebook"], []).append(told)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.verdicts:
            return
        from labkit.grade.report import summary, write_feedback

        terminalreporter.section("points")
        for notebook, verdicts in self.verdicts.items():
            terminalreporter.line(notebook)
            for line in summary(verdicts):
                terminalreporter.line(line)
            write_feedback(Path(notebook), verdicts)
