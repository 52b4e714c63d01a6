"""Records: what is written is read back, nothing private is written, a file is whole or absent."""

import getpass
import json
import math
import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from labkit.measure.record import ROOT, load, record

RESULT = {"median_s": 0.125, "rows": [{"size": 3, "ratio": 1.5}], "note": "α–β"}


def test_a_record_is_read_back_with_all_that_judges_it(tmp_path):
    path = record("ring-4", RESULT, shapes={"B": 2, "T": 128}, folder=tmp_path)
    assert path == tmp_path / "ring-4.json"
    read = load("ring-4", tmp_path)
    assert read["result"] == RESULT
    assert read["shapes"] == {"B": 2, "T": 128}
    assert read["versions"]["torch"] == torch.__version__
    assert read["versions"]["python"] == platform.python_version()
    assert read["machine"]["cores"] == os.cpu_count()
    assert read["machine"]["memory_bytes"] > 2**28
    assert len(read["date"]) == 10
    assert set(read) == {"name", "date", "commit", "machine", "versions", "shapes", "result"}


def test_a_record_does_not_say_whose_machine_it_was(tmp_path):
    text = record("private", RESULT, folder=tmp_path).read_text()
    words = json.dumps(json.loads(text)["machine"]) + json.dumps(json.loads(text)["versions"])
    for secret in (socket.gethostname(), str(ROOT), str(Path.home()), str(tmp_path)):
        assert secret not in text
    assert f'"{getpass.getuser()}"' not in words


def test_the_default_folder_is_the_books(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.measure.record.ROOT", tmp_path)
    with pytest.raises(ValueError, match="in which folder"):
        record("x", RESULT)
    (tmp_path / "pyproject.toml").touch()
    assert record("x", RESULT) == tmp_path / "book" / "results" / "x.json"


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "..", "", ".hidden", "x\n", "a\\b", "x.y"]
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    for call in (lambda: record(name, RESULT, folder=tmp_path), lambda: load(name, tmp_path)):
        with pytest.raises(ValueError, match="is no record"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_and_the_old_record_stays(tmp_path, number):
    record("x", RESULT, folder=tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        record("x", {"rows": [{"ratio": number}]}, folder=tmp_path)
    assert load("x", tmp_path)["result"] == RESULT


def test_a_write_that_fails_leaves_the_old_record_and_no_litter(tmp_path, monkeypatch):
    record("x", RESULT, folder=tmp_path)

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        record("x", {"new": 1}, folder=tmp_path)
    assert load("x", tmp_path)["result"] == RESULT
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
