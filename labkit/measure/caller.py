"""Who made this call: the user's line, found without the traceback module, in microseconds."""

import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist

DISTRIBUTED = Path(dist.__file__).parent
# torch's Python files that issue calls; what comes from elsewhere comes from C++.
FRONTS = {
    str(DISTRIBUTED / f"{name}.py") for name in ("distributed_c10d", "_functional_collectives")
}
# What lies between a call and the hook while a dispatch mode, such as a FLOP counter, is on.
DISPATCHERS = ("_ops.py", "_compile.py", "eval_frame.py", "_python_dispatch.py")


class Caller(NamedTuple):
    """Where a call comes from.

    Args:
        line: "file.py:12", the innermost frame outside torch, the standard library and labkit; for
            want of one, labkit's innermost, or None.
        blocking: it stands in a blocking send or recv.
        native: torch's C++ code made it.
    """

    line: str | None
    blocking: bool
    native: bool


def find_caller(operation: str, depth: int) -> Caller:
    """Walk outwards from the frame `depth` above this one."""
    place, blocking = None, False
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and _dispatches(frame):
        frame = frame.f_back
    native = frame is None or frame.f_code.co_filename not in FRONTS
    while frame is not None:
        code = frame.f_code
        owner = _owner(code.co_filename)
        if owner == "user":
            place = frame
            break
        if owner == "labkit" and place is None:
            place = frame
        # torch's blocking send is an isend and a wait: only the stack tells them apart.
        blocking = blocking or (owner == "torch" and code.co_name == operation)
        frame = frame.f_back
    line = place and f"{_short(place.f_code.co_filename)}:{place.f_lineno}"
    return Caller(line, blocking and operation in ("send", "recv"), native)


def _dispatches(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "__torch_dispatch__" or code.co_filename.endswith(DISPATCHERS)


@cache
def _owner(filename: str) -> str:
    """Whose code a file is: the user's, torch's, labkit's, or machinery nobody wants to see."""
    measure, torch_root = Path(__file__).parent, Path(torch.__file__).parent
    if filename.startswith(f"{torch_root}/"):
        return "torch"
    # torch's deprecated functions are wrapped by typing_extensions.
    if filename.startswith((f"{measure}/", "<frozen ")) or "/typing_extensions" in filename:
        return "machinery"
    standard = filename.startswith(f"{sysconfig.get_path('stdlib')}/")
    if standard and "/site-packages/" not in filename:
        return "machinery"
    return "labkit" if filename.startswith(f"{measure.parent}/") else "user"


@cache
def _short(filename: str) -> str:
    """The file's name; that of a notebook's cell holds a process number, no use to anyone."""
    path = Path(filename)
    return "cell" if path.parent.name.startswith("ipykernel_") else path.name
