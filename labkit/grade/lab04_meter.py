"""What a rank holds while lab 04 is judged, seen from outside: storages, from birth to death.

Nothing here asks the learner's objects. Every torch operation inside the `with` is looked at; the
storages of its results are remembered weakly, with the size that they have when somebody asks. So a
slice counts as the whole storage that it keeps alive, what autograd holds counts, and a storage
that was freed or shrunk by `resize_(0)` does not. Numbers of other types than float64 and tensors
of one element do not count: the programs of this lab compute in float64. Memory outside of torch
(NumPy, lists) and operations in other threads are not seen.
"""

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ONE_NUMBER = 8  # bytes
PATIENCE_S, NAP_S = 0.25, 0.005


class Meter(TorchDispatchMode):
    """Bytes alive now, and the most that was alive at one time, by what it belongs to.

    Args:
        parameters: whose .grad is watched.
        layers: modules whose parameters are watched.
        patience_s: how long to wait, in all and for each moment, for bytes to go.

    `most_gradient_bytes` is the most that stood in .grad at once. `most_layers` is the most layers
    that were whole at once: all storages that a layer's parameters have ever pointed to, and that
    are still alive, hold as many bytes as the layer has.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor] = (),
        layers: Sequence[torch.nn.Module] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__()
        self.most_gradient_bytes = 0
        self.most_layers = 0
        self._patience_s = patience_s
        self._waited_s: dict[str, float] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._parameters = list(parameters)
        self._layers = list(layers)
        self._full_bytes = [sum(map(_bytes, layer.parameters())) for layer in layers]
        self._of_layer: list[dict[int, weakref.ref[torch.UntypedStorage]]] = [{} for _ in layers]
        for tensor in (p for layer in layers for p in layer.parameters()):
            _remember(self._alive, tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.dtype == torch.float64:
                _remember(self._alive, tensor)
        self._look()
        return result

    def live_bytes(self, most: int, but: Iterable[torch.Tensor] = (), moment: str = "") -> int:
        """Bytes of the storages made in here that are alive, less those behind `but`.

        Args:
            most: what may be alive. gloo's threads let go of a collective's tensors a moment after
                it is complete; so where there is more, this looks again for a while.
            moment: of a step, such as "between". What is too much at one takes no patience from
                the others.
        """
        left_out = {tensor.untyped_storage()._cdata for tensor in but}
        waited_s = self._waited_s.get(moment, 0.0)
        while (held := self._held_bytes(left_out)) > most and waited_s < self._patience_s:
            time.sleep(NAP_S)
            waited_s += NAP_S
        self._waited_s[moment] = waited_s
        return held

    def _held_bytes(self, left_out: set[int]) -> int:
        sizes = [s.nbytes() for key, s in _living(self._alive) if key not in left_out]
        return sum(size for size in sizes if size > ONE_NUMBER)

    def _look(self) -> None:
        held = sum(_bytes(p.grad) for p in self._parameters if p.grad is not None)
        self.most_gradient_bytes = max(self.most_gradient_bytes, held)
        whole = 0
        for layer, of_layer, full in zip(
            self._layers, self._of_layer, self._full_bytes, strict=True
        ):
            for module in layer.modules():
                for parameter in module._parameters.values():
                    if parameter is not None:
                        _remember(of_layer, parameter)
            whole += sum(storage.nbytes() for _, storage in _living(of_layer)) >= full
        self.most_layers = max(self.most_layers, whole)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists and values of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


class Optimizers:
    """make_optimizer of this lab: AdamW with settings of the check's own, and what became of it."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._made: list[weakref.ref[torch.optim.Optimizer]] = []

    def __call__(self, tensors: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(tensors, **self._settings)
        self._made.append(weakref.ref(optimizer))
        return optimizer

    def state(self) -> list[torch.Tensor]:
        """The tensors of the states of all optimizers that are alive."""
        alive = [reference() for reference in self._made]
        return [t for each in alive if each is not None for t in tensors_in(dict(each.state))]


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind tensors, single numbers left out."""
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(size for size in sizes.values() if size > ONE_NUMBER)


def _remember(known: dict[int, Any], tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    known[storage._cdata] = weakref.ref(storage)


def _living(known: dict[int, Any]) -> list[tuple[int, torch.UntypedStorage]]:
    found = [(key, reference()) for key, reference in known.items()]
    for key in [key for key, storage in found if storage is None]:
        del known[key]
    return [(key, storage) for key, storage in found if storage is not None]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
