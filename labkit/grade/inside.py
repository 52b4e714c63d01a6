"""What happens inside a rank: limits, the learner's object, and what may leave.

Learner code shares this process with the ledger that judges it. So what it is judged by (labkit,
torch.distributed, builtins) is listed before learner code runs and compared after, and only plain
data leaves: no class of the learner's, whose == could say yes to everything, reaches the parent.
"""

import errno
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import fields
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from labkit.grade.answers import Source
from labkit.measure import events
from labkit.measure.call import Call

MEMORY_BYTES = 4 * 2**30  # of private memory; a rank that has done nothing holds 0.3 GiB
OUTPUT_BYTES = 32 * 2**20  # of any one file that a rank writes, its captured output among them
JUDGED_BY = ("builtins", "torch", "torch.distributed", "torch.distributed.distributed_c10d")
PLAIN = (type(None), bool, int, float, str, torch.dtype)
RECORDS = (Call, events.Compute, events.Launch, events.Wait, events.Mark)


class Refused(Exception):
    """A rank's answer cannot be judged; "key|name" for the parent, which reads only text."""


def judged(group: dist.ProcessGroup, program: Callable, carried: Any, args: tuple[Any, ...]) -> Any:
    """Run one rank of a check.

    Raises:
        Refused: if the answer cell does not run, replaces what it is judged by, or returns what a
            check cannot read.
    """
    before, compare, leave = _fingerprint(), _changed, plain  # bound before learner code runs
    _limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    _limit(resource.RLIMIT_FSIZE, OUTPUT_BYTES)
    learner = _load(carried) if type(carried) is Source else carried
    try:
        result = program(group, learner, *args)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        os.ftruncate(1, 0)  # what is still in the stream's buffer must go somewhere
        raise Refused("output|") from None
    if name := compare(before):
        raise Refused(f"tampered|{name}")
    return leave(result)


def plain(value: Any) -> Any:
    """The same value out of exact built-in types, tensors and labkit's own records only.

    Raises:
        Refused: naming the type that is none of these.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor)
    if kind in RECORDS:
        return kind(**{f.name: plain(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    raise Refused(f"result|{kind.__name__}")


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _load(source: Source) -> Any:
    try:
        return source.load()
    except (NotImplementedError, MemoryError):
        raise
    except Exception as error:  # a cell's own code may raise anything
        raise Refused(f"cell|{type(error).__name__}: {error}") from error


def _fingerprint() -> dict[str, tuple[int, int]]:
    """Which function or class stands under each name, and which code a function runs."""
    found = {}
    for name in [m for m in sys.modules if m in JUDGED_BY or m.startswith("labkit.")]:
        for key, value in vars(sys.modules[name]).items():
            found[f"{name}.{key}"] = _identity(value)
            # not isinstance: it asks for __class__, and a deprecated name would warn
            if issubclass(type(value), type) and value.__module__.startswith("labkit."):
                found |= {f"{name}.{key}.{k}": _identity(v) for k, v in vars(value).items()}
    return found


def _identity(value: Any) -> tuple[int, int]:
    if not callable(value):
        return 0, 0
    return id(value), id(value.__code__) if isinstance(value, FunctionType) else 0


def _changed(before: dict[str, tuple[int, int]]) -> str:
    """A name that is not what it was; names that are new do not matter."""
    after = _fingerprint()
    return next((name for name, what in before.items() if after.get(name) != what), "")
