"""Functions, arguments and results by value, from one process to another.

pickle sends a function as a name to import, and nobody can import a notebook. cloudpickle sends the
code itself. Three things are added here:

* A notebook's code loses its file on the way, so a traceback would show no source. The text of the
  cell travels along, under the name <cell HASH>: one text, one traceback, on every machine.
* A function of a module that is not installed (a test, a script's neighbour) travels as it is in
  memory.
* Of a tensor travels what it shows and no more: a view leaves the rest of its storage behind, a
  CUDA tensor arrives on the CPU, a tensor of an autograd graph arrives detached. A leaf keeps
  requires_grad, but not its .grad.
"""

import hashlib
import importlib
import inspect
import io
import linecache
import marshal
import os
import pickle
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
import torch

_REGISTRY = threading.Lock()  # cloudpickle keeps one list of modules for the whole process


class Parcel(NamedTuple):
    """A call on its way: its pickle, and the texts of the cells that its code is from, by name."""

    payload: bytes
    cells: dict[str, str]


def pack_call(fn: Callable, args: tuple) -> Parcel:
    """Pickle a function with its arguments.

    Raises:
        ValueError: naming what cannot travel, and the way out.
    """
    file = io.BytesIO()
    carrier = _Carrier(file)
    try:
        with _own_module_by_value(fn):
            carrier.dump((fn, args))
    except Exception as error:  # a __reduce__ may raise anything
        raise ValueError(
            f"{_name(fn)} cannot be carried over to the ranks: {_culprit(fn, args)}{error}. "
            "Pass plain data and tensors; make locks, files and process groups inside the function"
        ) from error
    return Parcel(file.getvalue(), carrier.cells)


def unpack_call(payload: bytes, cells: dict[str, str]) -> tuple[Callable, tuple]:
    """Rebuild a call, and let tracebacks find the source of its cells."""
    for name, text in cells.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return pickle.loads(payload)


def pack_result(value: Any) -> bytes:
    """Pickle what a rank returned.

    Raises:
        ValueError: naming its type and the way out.
    """
    file = io.BytesIO()
    try:
        _Carrier(file).dump(value)
    except Exception as error:  # a __reduce__ may raise anything
        raise ValueError(
            f"the returned {type(value).__name__} cannot be sent back: {error}. "
            "Return tensors, numbers, strings, or lists, tuples and dicts of these"
        ) from None
    return file.getvalue()


def unpack_result(payload: bytes) -> Any:
    """Rebuild what pack_result took."""
    return pickle.loads(payload)


class _Carrier(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.cells: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):  # marshal keeps the file name, cloudpickle would drop it
            return marshal.loads, (marshal.dumps(self._relabelled(obj)),)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            # cloudpickle takes the `ops` of `ledger.ops` for the module torch.ops, which is a class
            return importlib.import_module, (obj.__name__,)
        if type(obj) is torch.Tensor:
            return _lightest(obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)

    def _relabelled(self, code: CodeType) -> CodeType:
        text = _cell_text(code.co_filename)
        if not text:
            return code
        label = f"<cell {hashlib.sha256(text.encode()).hexdigest()[:6]}>"
        self.cells[label] = text
        inner = (self._relabelled(c) if isinstance(c, CodeType) else c for c in code.co_consts)
        return code.replace(co_filename=label, co_consts=tuple(inner))


def _cell_text(filename: str) -> str:
    """The text of a notebook cell: known to linecache, but no file on disk. Else nothing."""
    return "" if os.path.exists(filename) else "".join(linecache.getlines(filename))


def _lightest(x: torch.Tensor) -> torch.Tensor:
    """The same values on the CPU, in a storage of their own size, outside any graph."""
    if x.layout != torch.strided or x.is_meta:
        return x
    light = x.detach().cpu() if x.is_cuda or not x.is_leaf else x
    if light.untyped_storage().nbytes() > light.numel() * light.element_size():
        light = light.detach().clone()  # a dense tensor keeps its strides
    return light if light is x else light.requires_grad_(x.requires_grad and x.is_leaf)


@contextmanager
def _own_module_by_value(fn: Callable) -> Iterator[None]:
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _installed(module.__name__):
        yield
        return
    with _REGISTRY:
        known = module.__name__ in cloudpickle.list_registry_pickle_by_value()
        if not known:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if not known:
                cloudpickle.unregister_pickle_by_value(module)


def _installed(name: str) -> bool:
    """Whether a rank can import it as it is here: labkit, site-packages, the standard library."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules[name], "__file__", None) or ""
    packages = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
    return any(file.startswith(folder + os.sep) for folder in packages)


def _name(fn: Callable) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def _culprit(fn: Callable, args: tuple) -> str:
    """The first argument, closure variable or global of fn that pickle refuses, if there is one."""
    named = [(f"argument {position}", value) for position, value in enumerate(args)]
    if isinstance(fn, FunctionType):
        used = inspect.getclosurevars(fn)
        named += [
            (f"its variable {name!r}", v) for name, v in {**used.globals, **used.nonlocals}.items()
        ]
    for name, value in named:
        try:
            _Carrier(io.BytesIO()).dump(value)
        except Exception:  # whatever it raises, this is the one
            return f"{name} is a {type(value).__module__}.{type(value).__qualname__}: "
    return ""
