"""Bytes a rank holds: saved for backward, by category, and full parameters over time.

Bytes are those of the storages behind the tensors, each counted once. A view counts as the whole
storage that it keeps alive: a "shard" that is a slice of the full tensor saves nothing, and is seen
to save nothing. A storage freed by `resize_(0)` counts 0. Of a DTensor the local shard counts.

By hand, for y = relu(xW + b) with x [B, D], W [D, F], in fp32: backward keeps x, 4·B·D bytes, and
relu's result, 4·B·F bytes. It keeps W too, which is a parameter and so left out.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

Storages = dict[int, torch.UntypedStorage]


@dataclass(frozen=True, kw_only=True)
class ModuleBytes:
    """What one rank holds for a module, by category."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes


def module_bytes(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> ModuleBytes:
    """Bytes of a module and its optimizer on this rank; a storage counts once, in one category.

    The optimizer's are its state and all it updates that is no parameter of the module: fp32 master
    copies, or this rank's shards.
    """
    seen: Storages = {}
    parameters = list(module.parameters())
    sizes = {
        "parameter_bytes": _new_bytes(parameters, seen),
        "gradient_bytes": _new_bytes((parameter.grad for parameter in parameters), seen),
        "buffer_bytes": _new_bytes(module.buffers(), seen),
    }
    held = [optimizer.state, optimizer.param_groups] if optimizer else []
    return ModuleBytes(**sizes, optimizer_bytes=_new_bytes(_tensors_in(held), seen))


def _new_bytes(tensors: Iterable[torch.Tensor | None], seen: Storages) -> int:
    """Bytes of the storages that are not in `seen` yet; puts them there."""
    total = 0
    for tensor in tensors:
        if tensor is not None:
            storage = _storage(tensor)
            if storage._cdata not in seen:
                seen[storage._cdata] = storage  # held, so that its address stays its own
                total += storage.nbytes()
    return total


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own shard
    return local.untyped_storage()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested dicts and lists, keys left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(each)


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """The first tensor that was saved of one storage."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


class _Held:
    """What autograd keeps in the place of a tensor; it goes when autograd lets go of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # a result holds its graph, and so would for ever hold itself


class SavedActivations:
    """Bytes that autograd keeps for backward, of everything that runs inside the `with`.

    Args:
        module: its parameters and buffers are left out, for they are there anyway.

    `saved` lists the distinct storages in the order of their first save, `bytes` is their sum and
    `num_tensors` their number. `live_bytes` is what autograd still holds now: 0 after backward.
    """

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self.saved: list[SavedTensor] = []
        self._modules = [] if module is None else list(module.modules())
        self._live: dict[int, tuple[int, int]] = {}  # storage: (bytes, times it is held)
        self._hooks = saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.saved)

    @property
    def num_tensors(self) -> int:
        return len(self.saved)

    @property
    def live_bytes(self) -> int:
        return sum(size for size, _ in self._live.values())

    def table(self) -> str:
        """Plain text: one line a shape and dtype, largest sum first."""
        rows: dict[tuple[tuple[int, ...], torch.dtype], list[int]] = {}
        for each in self.saved:
            rows.setdefault((each.shape, each.dtype), []).append(each.bytes)
        lines = [f"{'shape':<24} {'dtype':<10} {'tensors':>8} {'bytes':>14}"]
        for (shape, dtype), sizes in sorted(rows.items(), key=lambda row: -sum(row[1])):
            name = str(dtype).removeprefix("torch.")
            lines.append(f"{list(shape)!s:<24} {name:<10} {len(sizes):>8} {sum(sizes):>14,}")
        return "\n".join([*lines, f"{'all':<35} {self.num_tensors:>8} {self.bytes:>14,}"])

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor)
        storage = _storage(tensor)
        key, size = storage._cdata, storage.nbytes()
        if all(_storage(own)._cdata != key for own in self._own_tensors()):
            if key not in self._live:
                shape = tuple(tensor.shape)
                self.saved.append(SavedTensor(shape=shape, dtype=tensor.dtype, bytes=size))
            _, times = self._live.get(key, (size, 0))
            self._live[key] = (size, times + 1)
            weakref.finalize(held, self._release, key)
        return held

    def _own_tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and buffers as they are now: sharded training re-points them on the way."""
        for module in self._modules:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    yield tensor

    def _release(self, key: int) -> None:
        size, times = self._live.pop(key)
        if times > 1:
            self._live[key] = (size, times - 1)


class LiveParameters(TorchDispatchMode):
    """Bytes of parameter storage that are alive, from the start of the `with` to its end.

    Looks at the module's parameters at every torch operation. A storage that some parameter has
    pointed to counts until it is gone, whoever still holds it, with the size that it has now: so a
    gathered weight that is dropped, or shrunk by `resize_(0)`, no longer counts.

    Args:
        module: the model; parameters may be replaced or re-pointed while it runs.

    `now_bytes` is the sum at this moment, `peak_bytes` the largest one seen.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._owners = [each._parameters for each in module.modules()]
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __enter__(self) -> Self:
        self._look()
        return super().__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._look()
        return result

    @property
    def now_bytes(self) -> int:
        return self._look()

    def _look(self) -> int:
        for owner in self._owners:
            for parameter in owner.values():
                if parameter is not None:
                    storage = _storage(parameter)
                    self._storages[storage._cdata] = weakref.ref(storage)
        alive = {key: reference() for key, reference in self._storages.items()}
        self._storages = {
            key: self._storages[key] for key, each in alive.items() if each is not None
        }
        total = sum(each.nbytes() for each in alive.values() if each is not None)
        self.peak_bytes = max(self.peak_bytes, total)
        return total
