"""Results that the book shows: one JSON file a result, with what is needed to judge it.

A record holds the result, the shapes it was measured on, the machine (processor, cores, memory,
GPUs and driver), the versions of Python, torch and triton, the commit and the date. It names no
host, no user and no folder. The file is written whole or not at all: a temporary one first, then a
rename.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def record(
    name: str,
    result: Mapping[str, Any],
    *,
    shapes: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """Write one result, replacing an older one of that name.

    Args:
        name: of the file, without ".json".
        result: numbers, strings, lists and dicts.
        shapes: sizes that the result belongs to.
        folder: where records are; book/results of this repository if not given.

    Returns:
        The file.

    Raises:
        ValueError: if the name is no plain file name, or a number is NaN or infinite.
    """
    path = _path(name, folder)
    content = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": machine(),
        "versions": versions(),
        "shapes": dict(shapes or {}),
        "result": dict(result),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, text)
    return path


def load(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read a record back: its "result" is what was recorded."""
    return json.loads(_path(name, folder).read_text(encoding="utf-8"))


def machine() -> dict[str, Any]:
    """The hardware, as numbers and product names."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": pages * page_bytes,
        "gpus": gpus,
        "driver": _told_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
    }


def versions() -> dict[str, str | None]:
    """Python, torch and triton; None for what is not installed."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": triton,
    }


def _path(name: str, folder: Path | None) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f'"{name}" is no record: letters, digits, "-" and "_" only')
    if folder is None and not (ROOT / "pyproject.toml").is_file():
        raise ValueError("labkit does not run from its repository: say in which folder records are")
    return (folder or ROOT / "book" / "results") / f"{name}.json"


def _write_whole(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp lets only its owner read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _commit() -> str | None:
    """The commit that was checked out, "-dirty" behind it where files differ from it."""
    flags = ("--always", "--dirty", "--abbrev=40", "--exclude=*")
    return _told_by("git", "-C", str(ROOT), "describe", *flags)


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", listing.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
    return platform.processor() or platform.machine()


def _told_by(program: str, *arguments: str) -> str | None:
    """First line of a program's output; None if it is missing, fails or says nothing."""
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return lines[0].strip() if lines else None
