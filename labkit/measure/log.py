"""EventLog: what this rank computed and communicated, as events that fabric.py can replay.

    with EventLog() as log:
        loss = model(x)
        log.mark("backward")
        loss.backward()
        log.wait_all()  # for torch DDP, which waits in C++ where nobody can listen

Communication comes from hook.py: a Launch where a call is issued, a Wait where the rank first waits
for it. A synchronous call is a Launch with its Wait right behind it. Arithmetic comes from torch's
FLOP counter: matrix products, convolutions and attention, of the thread that opened the log
(autograd runs CPU backward on the caller's). What lies between two other events is one Compute.

torch DDP launches its all-reduces from C++ and waits for them there, once, at the end of backward.
`wait_all()` behind `backward()` writes a Wait for every launch that is still open.
"""

import threading
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from .call import Call
from .events import Compute, Event, Launch, Mark, Wait
from .hook import subscribe, unsubscribe


class EventLog:
    """Records `events` between `with` and its end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._launches = 0
        self._open: dict[
            int, int
        ] = {}  # sequence of a call nobody has waited for → id of its launch
        self._counted = 0
        self._flops = FlopCounterMode(display=False, custom_mapping=_cpu_attention())

    def __enter__(self) -> Self:
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
        total = self._flops.get_total_flops()
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


def _cpu_attention() -> dict[Any, Any]:
    """Formulas for CPU flash attention, which torch's counter leaves out: it would be 0 FLOP."""
    aten = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return sdpa_flop_count(query, key, value)

    def backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return sdpa_backward_flop_count(grad, query, key, value)

    return {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
