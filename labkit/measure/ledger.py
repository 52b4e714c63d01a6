"""CommLedger: what this rank sent to others, call by call, for any torch.distributed program.

    with CommLedger() as ledger:
        step(model, batch)
    ledger.count("all_reduce"), ledger.bytes_sent(), print(ledger.table())

It records every call of this process while it is open: torch DDP's and FSDP2's, those of backward,
of other threads and of fake worlds (hook.py). Bytes are a convention about the operation, not a
count of the wire. S is this rank's payload in bytes, N the size of the group (rounding: call.py).

| operation      | bytes_sent()                     | bytes_received()                 |
| -------------- | -------------------------------- | -------------------------------- |
| send           | S                                | 0                                |
| recv           | 0                                | S                                |
| all_reduce     | 2(N−1)/N · S                     | 2(N−1)/N · S                     |
| reduce_scatter | (N−1)/N · S                      | (N−1)/N · S                      |
| all_gather     | (N−1) · S                        | (N−1) · S                        |
| all_to_all     | S less its own share             | what arrives, less its own share |
| broadcast      | root: (N−1) · S; others 0        | root: 0; others S                |
| scatter        | root: (N−1)/N · S; others 0      | root: 0; others S                |
| reduce, gather | root: 0; others S                | root: (N−1) · S; others 0        |
| barrier        | 0                                | 0                                |
"""

from types import TracebackType
from typing import Self

from .call import OPERATIONS, Call
from .hook import subscribe, unsubscribe

HEADER = ("#", "operation", "axis", "payload", "dtype", "sent", "received")
NAMES = tuple(dict.fromkeys(OPERATIONS.values()))


class CommLedger:
    """Records communication between `with` and its end; ledgers may nest, and each hears all.

    `ops` lists the calls in the order they were issued. It is plain data: a rank can return it.
    """

    def __init__(self) -> None:
        self.ops: list[Call] = []

    def __enter__(self) -> Self:
        subscribe(self.ops.append)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unsubscribe(self.ops.append)

    def count(self, operation: str | None = None, axis: str | None = None) -> int:
        """Number of calls, of one operation and on one axis if given."""
        return len(self._chosen(operation, axis))

    def bytes_sent(self, operation: str | None = None, axis: str | None = None) -> int:
        """Bytes this rank sent, by the table above."""
        return sum(call.bytes_sent for call in self._chosen(operation, axis))

    def bytes_received(self, operation: str | None = None, axis: str | None = None) -> int:
        """Bytes this rank received, by the table above."""
        return sum(call.bytes_received for call in self._chosen(operation, axis))

    def table(self) -> str:
        """The calls as plain text, one a line, without times, addresses or source lines."""
        rows = [HEADER]
        for order, call in enumerate(self.ops):
            dtype = "" if call.dtype is None else str(call.dtype).removeprefix("torch.")
            sizes = call.payload_bytes, call.bytes_sent, call.bytes_received
            payload, sent, received = (f"{size:,}" for size in sizes)
            rows.append((str(order), call.operation, call.axis, payload, dtype, sent, received))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        numeric = {0, 3, 5, 6}
        lines = (
            "  ".join(
                text.rjust(width) if column in numeric else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def _chosen(self, operation: str | None, axis: str | None) -> list[Call]:
        # A name nobody uses would count 0 for ever: a check that can never fail.
        if operation is not None and operation not in NAMES:
            raise ValueError(f"no operation {operation!r}; there are {', '.join(NAMES)}")
        return [
            call
            for call in self.ops
            if operation in (None, call.operation) and axis in (None, call.axis)
        ]
