"""Meter: bytes that one rank holds, by category, from the first tensor to the last.

    meter = Meter()
    with meter:                         # while the model is built
        ...
    meter.watch(module, optimizer)
    with meter.step():                  # one training step
        ...
    meter.held(), meter.peak()          # Holding: bytes by category at two moments of the step

A storage counts once, from the operation that makes it until it is gone, with the size it has: one
shrunk by `resize_(0)` counts 0. What a kernel allocates for itself is not seen, and neither is what
an allocator rounds up or leaves unused between blocks. Real and fake tensors are metered alike.

Categories are those of holding.py. What a storage is may show only after the moment at which it
counts most: a sum of gradients is in nobody's `.grad` before the optimizer steps. So a moment is
kept as a list of storages, and sorted into categories when the step is over.

Two moments are stored: the one with most bytes, and the end of the last backward. ZeRO's table is
about the second. Beside them, `most_kept_bytes` is the most that autograd kept at any time, without
what recomputation makes again: what labkit.cost calls activation bytes.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.measure.lending import Loans
from labkit.simulate.holding import CATEGORIES, LASTING, Holding

UNKNOWN = -1  # number of a storage that was made elsewhere
VIEWS = {torch.ops.aten.select.int, torch.ops.aten.unbind.int}  # often called, and make nothing


class Meter(TorchDispatchMode):
    """Follows every storage that operations make inside it; it may be entered again, once left."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.most_kept_bytes = 0
        self._numbers = count()
        self._known: dict[int, int] = {}  # address of a storage: its number
        self._live: dict[int, int] = {}  # number: bytes
        self._category: dict[int, str] = {}  # number: what has shown so far
        self._kept: set[int] = set()  # by autograd, for backward
        self._kept_bytes = 0
        self._moments: dict[str, tuple[str, dict[int, int]]] = {}
        self._peak_bytes = 0
        self._peak_is_now = False  # nothing has been freed since
        self._was_in_backward = False
        self._updating = False
        self._modules: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._loans = Loans()

    def watch(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Name the owner of parameters, and the one of optimizer state; there may be several."""
        self._modules.append(module)
        self._optimizers.append(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._update())

    @contextmanager
    def step(self) -> Iterator[None]:
        """Forget the moments before, and follow one step."""
        self._look()
        self._moments.clear()
        self._updating = False
        self._peak_bytes, self.most_kept_bytes = 0, self._kept_bytes
        with self, saved_tensors_hooks(self._pack, _unpack):
            yield
        self._keep_peak()

    def peak(self) -> Holding:
        """The moment of the step with most bytes."""
        return self._holding("peak")

    def held(self) -> Holding:
        """The end of the step's last backward."""
        return self._holding("held")

    def __enter__(self) -> "Meter":
        self._plain_resize = plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = plain(storage, size)
            self._resized(storage, size)
            return result

        setattr(torch.UntypedStorage, "resize_", resize)  # noqa: B010 (the stub calls it a method)
        self._loans.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        setattr(torch.UntypedStorage, "resize_", self._plain_resize)  # noqa: B010
        self._loans.__exit__(*error)
        super().__exit__(*error)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it takes as long as the rest

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._loans.are_due:
            self._loans.settle(tree_leaves((args, kwargs)))
        if func.namespace == "c10d":
            self._loans.lend(x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and func not in VIEWS:
            if self._was_in_backward != _in_backward():
                self._turn()
            for each in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(each, torch.Tensor):
                    self._follow(each.untyped_storage())
        return result

    def _turn(self) -> None:
        """Backward begins or ends; at its end the gradients are where their owner keeps them."""
        self._was_in_backward = not self._was_in_backward
        if not self._was_in_backward:
            self._look()
            self._moments["held"] = "backward", self._live.copy()

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        number = self._known[key] = next(self._numbers)
        self._live[number] = 0
        weakref.finalize(storage, self._gone, key, number)
        if self._was_in_backward and torch.is_grad_enabled():  # run again for backward
            self._category[number] = "activations"
        self._set(number, storage.nbytes())

    def _resized(self, storage: torch.UntypedStorage, size: int) -> None:
        number = self._known.get(storage._cdata)
        if number is not None:
            self._set(number, size)

    def _gone(self, key: int, number: int) -> None:
        self._set(number, 0)
        del self._live[number]
        self._kept.discard(number)
        if self._known.get(key) == number:
            del self._known[key]

    def _set(self, number: int, size: int) -> None:
        """The storage has this many bytes from now on."""
        more = size - self._live[number]
        if more < 0:
            self._keep_peak()
        self._live[number] = size
        self.live_bytes += more
        if number in self._kept:
            self._count_kept(more)
        if self.live_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_is_now = self.live_bytes, True

    def _count_kept(self, more: int) -> None:
        self._kept_bytes += more
        self.most_kept_bytes = max(self.most_kept_bytes, self._kept_bytes)

    def _keep_peak(self) -> None:
        """Before something is freed: the storages of the highest moment so far."""
        if self._peak_is_now:
            self._moments["peak"] = self._phase(), self._live.copy()
        self._peak_is_now = False

    def _phase(self) -> str:
        if self._was_in_backward:
            return "backward"
        return "update" if self._updating else "forward"

    def _update(self) -> None:
        """An optimizer is about to step: whatever it will use is there."""
        self._look()
        self._updating = True

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd keeps a tensor; weights are not its own, nor are views of them."""
        base = tensor if tensor._base is None else tensor._base
        number = self._known.get(tensor.untyped_storage()._cdata, UNKNOWN)
        is_new = number in self._live and number not in self._category
        if is_new and not isinstance(base, nn.Parameter):
            self._category[number] = "activations"
            self._kept.add(number)
            self._count_kept(self._live[number])
        return tensor.detach()  # a result holds its graph, and so would for ever hold itself

    def _look(self) -> None:
        """Ask modules and optimizers what they have now."""
        parameters = [p for module in self._modules for p in module.parameters()]
        updated = [
            p
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        states = [each for optimizer in self._optimizers for each in optimizer.state.values()]
        grads = [p.grad for p in (*parameters, *updated) if p.grad is not None]
        self._name("parameters", parameters)
        self._name("gradients", grads)
        self._name("optimizer", [*updated, *(x for state in states for x in _tensors(state))])

    def _name(self, category: str, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            number = self._known.get(tensor.untyped_storage()._cdata)
            if number is not None and self._category.get(number) not in LASTING:
                if number in self._kept:
                    self._kept.remove(number)
                    self._count_kept(-self._live[number])
                self._category[number] = category

    def _holding(self, moment: str) -> Holding:
        if moment not in self._moments:
            raise RuntimeError(f"no {moment} yet: a step with a backward must have run in step()")
        phase, live = self._moments[moment]
        sums: Counter[str] = Counter(dict.fromkeys(CATEGORIES, 0))
        for number, size in live.items():
            sums[self._category.get(number, "in flight")] += size
        return Holding(phase=phase, by_category=dict(sums))


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() >= 0
