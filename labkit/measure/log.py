"""EventLog: what this rank computed and communicated, as events that fabric.py can replay.

    with EventLog() as log:
        loss = model(x)
        log.mark("backward")
        loss.backward()
        log.wait_all()  # for torch DDP, which waits in C++ where nobody can listen

Communication comes from hook.py: a Launch where a call is issued, a Wait where the rank first waits
for it. A synchronous call is a Launch with its Wait right behind it. Arithmetic is what torch has a
FLOP formula for (matrix products, convolutions, attention), in the thread that opened the log:
autograd runs CPU backward there too. What lies between two other events is one Compute.

torch DDP launches its all-reduces from C++ and waits for them there, once, at the end of backward.
`wait_all()` behind `backward()` writes a Wait for every launch that is still open.
"""

import threading
from types import TracebackType
from typing import Any, Self

import torch
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .call import Call
from .events import Compute, Event, Launch, Mark, Wait
from .hook import subscribe, unsubscribe


class EventLog:
    """Records `events` between `with` and its end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._launches = 0
        # Calls nobody has waited for: sequence → id of the launch.
        self._open: dict[int, int] = {}
        self._counted = 0
        self._flops = _FlopMode()

    def __enter__(self) -> Self:
        self._flops.world = active_fake_mode()
        self._flops.__enter__()
        subscribe(self._issued, self._waited)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unsubscribe(self._issued)
        self._flops.__exit__(kind, error, trace)
        with self._lock:
            self._compute()

    def mark(self, name: str) -> None:
        """Name this point of the log."""
        with self._lock:
            self._compute()
            self.events.append(Mark(name=name))

    def wait_all(self) -> None:
        """Write a Wait for every launch still open: the end of torch DDP's backward."""
        with self._lock:
            self._compute()
            self.events.extend(Wait(id=launch) for launch in self._open.values())
            self._open.clear()

    def _compute(self) -> None:
        """One Compute for what was counted since the last event."""
        total = self._flops.flops
        if total > self._counted:
            self.events.append(Compute(flops=float(total - self._counted)))
            self._counted = total

    def _issued(self, call: Call) -> None:
        with self._lock:
            self._compute()
            self._open[call.sequence] = self._launches
            self.events.append(
                Launch(
                    id=self._launches,
                    operation=call.operation,
                    axis=call.axis,
                    ranks=call.ranks,
                    bytes=call.payload_bytes,
                    peer=call.peer,
                )
            )
            self._launches += 1

    def _waited(self, call: Call) -> None:
        with self._lock:
            if call.sequence in self._open:
                self._compute()
                self.events.append(Wait(id=self._open.pop(call.sequence)))


class _FlopMode(TorchDispatchMode):
    """Adds up torch's own formulas, for the operators that really run on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.world: Any = None  # the fake mode that a simulation runs in
        aten = torch.ops.aten
        # Without the last two, CPU flash attention would be 0 FLOP: torch's registry lacks them.
        self.formulas = {
            **flop_registry,
            aten._scaled_dot_product_flash_attention_for_cpu: _attention,
            aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # DTensor works out shapes on fake tensors; outside a fake world those are no arithmetic.
        if active_fake_mode() is not self.world:
            return func(*args, **kwargs)
        # A DTensor's shape is that of the whole; let it come back as the part that this rank has.
        if any(kind.__module__.startswith("torch.distributed.") for kind in types):
            return NotImplemented
        formula = self.formulas.get(func._overloadpacket)
        if formula is None and func.namespace != "prim":  # a fake tensor's device is no arithmetic
            with self:  # without autograd a linear layer arrives whole
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> int:
    return sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)
