"""The one file that touches torch's dispatcher: it hears every communication call of this process.

A BackendSelect kernel stands in front of each `c10d::` and `_c10d_functional::` operator, tells the
subscribers, and passes the call on. It hears synchronous and asynchronous calls, point-to-point,
backward, every thread, torch DDP's C++ reducer, FSDP2, DTensor and fake worlds alike. A functional
operator that reaches a `c10d::` one on the same thread counts once. Not heard: symmetric-memory
kernels (`symm_mem::`), and waits inside C++ (torch DDP's).

Kernels go in with the first subscriber (about 1 ms) and out with the last. A subscriber that raises
does so in the caller, before anything is sent. Tensors are never read, so fake tensors serve too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .call import OPERATIONS, Call, Group, process_group, read_call, read_group
from .caller import find_caller

KEY = torch._C.DispatchKey.BackendSelect
NAMESPACES = ("c10d", "_c10d_functional")
WAIT = "_c10d_functional::wait_tensor"
# Operators of the two namespaces that send nothing of their own.
SILENT = {
    WAIT,
    "c10d::check_for_nan",
    "_c10d_functional::batch_p2p_ops",
    "_c10d_functional::_wrap_tensor_autograd",
}
Listener = Callable[[Call], None]


class _Subscriber(NamedTuple):
    issued: Listener
    waited: Listener | None


class _Hook:
    """The subscribers and the kernels that serve them: one a process, because the dispatcher is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.subscribers: tuple[_Subscriber, ...] = ()
        self.libraries: list[torch.library.Library] = []
        self.plain_wait: Any = None
        self.running = 0
        self.sequence = count()
        self.thread = threading.local()
        self.groups: WeakKeyDictionary[dist.ProcessGroup, Group] = WeakKeyDictionary()
        # Calls that nobody has waited for yet; keeping the handle keeps its key its own.
        self.pending: dict[int, tuple[Any, Call]] = {}

    def add(self, subscriber: _Subscriber) -> None:
        with self.lock:
            if not self.libraries:
                self._install()
            self.subscribers += (subscriber,)

    def drop(self, issued: Listener) -> None:
        with self.lock:
            found = [s for s in self.subscribers if s.issued == issued]
            if not found:
                raise RuntimeError("this callback is not subscribed")
            kept = list(self.subscribers)
            kept.remove(found[-1])
            self.subscribers = tuple(kept)
            # A kernel that another thread is inside of must stay, until the next last drop.
            if not kept and not self.running:
                self._remove()

    def _install(self) -> None:
        for namespace in NAMESPACES:
            library = torch.library.Library(namespace, "IMPL")
            self.libraries.append(library)
            for name in (*OPERATIONS, WAIT):
                operator = _operator(name) if name.startswith(namespace + "::") else None
                if operator is not None:
                    kernel = self._wait_kernel if name == WAIT else self._kernel
                    library.impl(operator, kernel(name, operator), KEY.name, with_keyset=True)
        self.plain_wait = plain_wait = dist.Work.wait

        def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            self._waited(id(work))
            return plain_wait(work, *args, **kwargs)

        setattr(dist.Work, "wait", wait)  # noqa: B010 (the stub calls it a method)

    def _remove(self) -> None:
        for library in self.libraries:
            library._destroy()
        self.libraries = []
        self.pending.clear()
        self.groups.clear()
        setattr(dist.Work, "wait", self.plain_wait)  # noqa: B010

    def _kernel(self, name: str, operator: Any) -> Callable:
        names = [argument.name for argument in operator._schema.arguments]

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            subscribers = self.subscribers
            if not subscribers or getattr(self.thread, "inside", False):
                return operator.redispatch(keys.remove(KEY), *args, **kwargs)
            self.thread.inside = True
            with self.lock:
                self.running += 1
            try:
                call = self._read(name, dict(zip(names, args, strict=False)) | kwargs)
                for subscriber in subscribers:
                    subscriber.issued(call)
                result = operator.redispatch(keys.remove(KEY), *args, **kwargs)
                self._answered(call, result)
                return result
            finally:
                self.thread.inside = False
                with self.lock:
                    self.running -= 1

        return kernel

    def _wait_kernel(self, name: str, operator: Any) -> Callable:
        def kernel(keys: Any, tensor: torch.Tensor) -> Any:
            self._waited(tensor.untyped_storage()._cdata)
            return operator.redispatch(keys.remove(KEY), tensor)

        return kernel

    def _read(self, name: str, arguments: dict[str, Any]) -> Call:
        handle = process_group(arguments)
        group = self.groups.get(handle)
        if group is None:
            group = self.groups[handle] = read_group(handle)
        caller = find_caller(OPERATIONS[name], depth=3)
        thread = threading.current_thread().name
        return read_call(
            name,
            arguments,
            group,
            sequence=next(self.sequence),
            asynchronous=not caller.blocking and arguments.get("async_op", True),
            native=caller.native and name.startswith("c10d::"),
            thread=thread,
            where=caller.line or f"thread {thread}",
        )

    def _answered(self, call: Call, result: Any) -> None:
        """A synchronous call has been waited for when it returns; remember the others."""
        if not any(subscriber.waited for subscriber in self.subscribers):
            return
        if not call.asynchronous:
            return self._tell_waited(call)
        last = result[-1] if isinstance(result, (tuple, list)) and result else result
        if isinstance(last, torch.ScriptObject):
            work = dist.Work.unbox(last)
            self.pending[id(work)] = work, call
        elif isinstance(last, torch.Tensor):
            self.pending[last.untyped_storage()._cdata] = last, call

    def _waited(self, key: int) -> None:
        _, call = self.pending.pop(key, (None, None))
        if call is not None:
            self._tell_waited(call)

    def _tell_waited(self, call: Call) -> None:
        for subscriber in self.subscribers:
            if subscriber.waited is not None:
                subscriber.waited(call)


_HOOK = _Hook()


def subscribe(issued: Listener, waited: Listener | None = None) -> None:
    """Call issued(call) before each communication call, waited(call) once somebody waits for it.

    Both run in the thread that communicates. Who hears waits keeps what nobody waits for alive.
    """
    _HOOK.add(_Subscriber(issued, waited))


def unsubscribe(issued: Listener) -> None:
    """End the newest subscription of this callback.

    Raises:
        RuntimeError: if it has none.
    """
    _HOOK.drop(issued)


@contextmanager
def subscribed(issued: Listener, waited: Listener | None = None) -> Iterator[None]:
    """Subscribe for the time of a with block."""
    subscribe(issued, waited)
    try:
        yield
    finally:
        unsubscribe(issued)


def self_test() -> None:
    """Check that torch still has the operators that this file relies on, and that a call is heard.

    Raises:
        RuntimeError: naming the version of torch and the operator.
    """
    registered = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    communicating = {name for name in registered if name.partition("::")[0] in NAMESPACES}
    missing = {name for name in OPERATIONS if name.startswith("c10d::")} - communicating
    unknown = communicating - OPERATIONS.keys() - SILENT
    for name in sorted(missing | unknown):
        kind = "has no" if name in missing else "has a new operator that the hook does not know:"
        raise RuntimeError(f"torch {torch.__version__} {kind} {name}")
    heard: list[Call] = []
    with subscribed(heard.append):
        _alone().allreduce([torch.ones(3)]).wait()
    if [(call.operation, call.payload_bytes) for call in heard] != [("all_reduce", 12)]:
        raise RuntimeError(f"torch {torch.__version__}: c10d::allreduce_ was not heard: {heard}")


def _alone() -> dist.ProcessGroup:
    """A gloo group of one, beside whatever world there is."""
    store = dist.HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    gloo = dist.ProcessGroupGloo(store, 0, 1, timedelta(seconds=10))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


def _operator(name: str) -> Any:
    namespace, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), plain, None)  # older versions lack some
    return None if packet is None else packet.default
