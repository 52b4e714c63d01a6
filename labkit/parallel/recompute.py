"""Activation recomputation: keep what went into a unit, and run it again when backward gets there.

    y = recompute(unit, x)        the numbers and gradients of unit(x), to the last bit

| kept for backward  | bytes                   | arithmetic of the unit      |
| ------------------ | ----------------------- | --------------------------- |
| plain              | everything it saved     | forward once                |
| full               | its inputs              | forward twice               |
| selective          | all but the core's own  | forward, and the core twice |

Full: the unit is a whole layer. Selective: the unit is a part of it that is large to keep and cheap
to run again. In the paper that is the attention core, softmax(q kᵀ / sqrt(d)) v: what it saves
grows with the square of the sequence, and its inputs q, k and v are small.

How: autograd's graph stays as it is. Only what it would save is replaced by a number, and the first
time one of these is asked for, the unit runs again and hands out what it saves then. So parameters,
tensors that the unit closes over and frozen inputs need no list, and hooks fire as they always do.

The second run must do what the first did. It finds the same autocast and the same random state:
torch's, of the CPU and of the inputs' devices, and that of every torch.Generator among the
arguments.
Buffers are not put back: a unit that counts something in a buffer counts it twice. Collectives
inside a unit are issued again in backward, by every rank in the same order.
Source: Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv 2205.05198, section 5.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call function(*args, **kwargs); backward runs it again instead of keeping what it saves.

    Args:
        function: a module, or any function of tensors and other things. Its results may be nested.

    Raises:
        ValueError: if the function writes into one of its tensors: the second run would read what
            the first one left there.
        RuntimeError: in backward, if the second run saves other tensors than the first.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    unit = _Unit(function, args, kwargs)
    with saved_tensors_hooks(unit.pack, unit.unpack):
        result = function(*args, **kwargs)
    unit.check_inputs()
    return result


@contextmanager
def recomputing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, these modules are recomputed wherever they are called: `recompute` for a whole model.

    Backward may come after the block has ended.
    """
    wrapped = list(dict.fromkeys(modules))
    before = [vars(module).get("forward") for module in wrapped]  # None: the class's own is in use
    try:
        for module in wrapped:
            module.forward = _wrapped(module.forward)
        yield
    finally:
        for module, forward in zip(wrapped, before, strict=True):
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward


def _wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: recompute(forward, *args, **kwargs)


class _Keep(torch.autograd.Function):
    """Saves tensors where autograd saves its own, so that hooks around a unit see them."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise AssertionError("nothing follows from the anchor, so no gradient comes back to it")


class _Slot:
    """What autograd holds in place of the i-th tensor that the unit saved."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.kind = _kind(tensor)


class _Unit:
    """One call of a function: its arguments, the state that it started from, and its slots."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self._names = list(kwargs)
        self._values = [*args, *kwargs.values()]
        self._places = [i for i, v in enumerate(self._values) if isinstance(v, torch.Tensor)]
        tensors = [self._values[i] for i in self._places]
        self._versions = [tensor._version for tensor in tensors]
        self._kept = _Keep.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn
        self._refs = [weakref.ref(tensor) for tensor in tensors]
        for i in self._places:
            self._values[i] = None
        self._random = _RandomState(tensors, self._values)
        self._autocast = _autocast_of({"cpu", *(tensor.device.type for tensor in tensors)})
        self._slots: list[weakref.ref[_Slot]] = []
        self._again: weakref.WeakKeyDictionary[_Slot, torch.Tensor] = weakref.WeakKeyDictionary()

    def check_inputs(self) -> None:
        """After the first run: nobody has written into the inputs."""
        for i, ref, version in zip(self._places, self._refs, self._versions, strict=True):
            tensor = ref()
            if tensor is not None and tensor._version != version:
                raise ValueError(_written(i, tensor._version - version))

    def pack(self, tensor: torch.Tensor) -> _Slot:
        slot = _Slot(len(self._slots), tensor)
        self._slots.append(weakref.ref(slot))
        return slot

    def unpack(self, slot: _Slot) -> torch.Tensor:
        if slot not in self._again:  # the first of them, or a second backward
            self._run_again()
        return self._again.pop(slot)

    def _run_again(self) -> None:
        """Run the function and keep what it saves, for the slots that autograd still holds."""
        values, kept = list(self._values), self._kept.saved_tensors
        for i, tensor, version in zip(self._places, kept, self._versions, strict=True):
            if tensor._version != version:  # torch does not look where hooks have packed it
                raise RuntimeError(_written(i, tensor._version - version))
            values[i] = tensor
        num_args = len(values) - len(self._names)
        args, kwargs = values[:num_args], dict(zip(self._names, values[num_args:], strict=True))
        saved: list[torch.Tensor] = []

        def collect(tensor: torch.Tensor) -> None:
            saved.append(tensor.detach())

        with ExitStack() as state:
            state.enter_context(torch.enable_grad())
            state.enter_context(self._random.restored())
            for device, dtype, enabled, cached in self._autocast:
                mode = torch.autocast(device, dtype, enabled=enabled, cache_enabled=cached)
                state.enter_context(mode)
            state.enter_context(saved_tensors_hooks(collect, _never))
            self.function(*args, **kwargs)
        self._hand_out(saved)

    def _hand_out(self, saved: list[torch.Tensor]) -> None:
        if len(saved) != len(self._slots):
            raise RuntimeError(
                f"the first run saved {len(self._slots)} tensors and the second {len(saved)}: a "
                "recomputed function must do the same again"
            )
        for ref, tensor in zip(self._slots, saved, strict=True):
            slot = ref()
            if slot is None:
                continue
            if slot.kind != _kind(tensor):
                raise RuntimeError(
                    f"saved tensor {slot.index} was {slot.kind} in the first run and is "
                    f"{_kind(tensor)} in the second: a recomputed function must do the same again"
                )
            self._again[slot] = tensor


class _RandomState:
    """The state of every random generator that a unit can reach without closing over one."""

    def __init__(self, tensors: list[torch.Tensor], values: list[Any]) -> None:
        accelerated = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        own = [torch.default_generator, *map(_generator_of, accelerated)]
        generators = [*own, *(v for v in values if isinstance(v, torch.Generator))]
        self._states = [(generator, generator.get_state()) for generator in generators]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The kept states inside, and afterwards those from before."""
        before = [(generator, generator.get_state()) for generator, _ in self._states]
        try:
            for generator, state in self._states:
                generator.set_state(state)
            yield
        finally:
            for generator, state in before:
                generator.set_state(state)


def _generator_of(device: torch.device) -> torch.Generator:
    module = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    return module.default_generators[index]


def _autocast_of(device_types: set[str]) -> list[tuple[str, torch.dtype, bool, bool]]:
    """(device, dtype, enabled, cache) of torch.autocast as it is now."""
    cached = torch.is_autocast_cache_enabled()
    return [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cached)
        for kind in sorted(device_types - {"meta"})
    ]


def _written(place: int, times: int) -> str:
    return (
        f"tensor argument {place} was written into {times} time(s), 0 are allowed: the second run "
        "would read what was left there; work on a copy"
    )


def _kind(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"


def _never(packed: None) -> torch.Tensor:
    raise AssertionError("the second run is for what it saves; nothing goes back through it")
