"""Tensors that a communication library holds on to after its call has been waited for.

gloo's worker tells the waiting caller first and lets go of the tensors next, up to some
milliseconds later. In between, a tensor that nobody uses is not free yet: whoever counts bytes
counts it, now and then. Loans wait for that moment, so that a count does not depend on it.

    loans.lend(tensors)     before the call is issued
    ...                     the call, and the wait for it
    loans.settle(tensors)   before bytes are counted

How many references a tensor has is torch's own count, the one that decides when it is freed. The
worker has one at least to each tensor of its call, and two or more to what it writes into; autograd
has one, to what it keeps. Fake tensors are lent to nobody.
"""

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from labkit.measure.call import Call
from labkit.measure.hook import subscribe, unsubscribe

OF_THE_CALL = 2  # references that a call's own arguments are, as a dispatch mode sees them
PAUSE_S = 5e-4
PATIENCE_S = 0.1  # who holds a tensor for longer than this is no worker that is about to let go


class _Lent(NamedTuple):
    tensor: "ref[torch.Tensor]"
    num_references: int  # without the borrower's

    def more(self) -> int:
        """References more than when it was lent; 0 for a tensor that is no more."""
        tensor = self.tensor()
        return 0 if tensor is None else _references(tensor) - self.num_references


Loan = list[_Lent]  # the tensors of one call


class Loans:
    """What is lent to calls of this process, from a dispatch mode's point of view."""

    def __init__(self) -> None:
        self._lending: Loan = []
        self._running: dict[int, Loan] = {}  # by the call's sequence number
        self._due: list[Loan] = []

    def lend(self, tensors: Iterable[torch.Tensor]) -> None:
        """The call that is issued next borrows these."""
        self._lending = [
            _Lent(ref(x), _references(x) - OF_THE_CALL)
            for x in tensors
            if not isinstance(x, FakeTensor)
        ]

    @property
    def are_due(self) -> bool:
        """Whether a call has been waited for that may still hold something."""
        return bool(self._due)

    def settle(self, used: Iterable[Any] = ()) -> None:
        """Return once the calls that have been waited for have let go of what they borrowed.

        Args:
            used: what the operator that comes next is given. Its tensors live on, and have more
                references for now; they are asked about the next time.
        """
        kept = {id(x) for x in used}
        later: list[Loan] = []
        due: list[Loan] = []
        for loan in self._due:
            lives_on = any(id(lent.tensor()) in kept for lent in loan)
            (later if lives_on else due).append(loan)
        end_s = time.perf_counter() + PATIENCE_S
        while due and time.perf_counter() < end_s:
            due = [loan for loan in due if _is_out(loan)]
            time.sleep(PAUSE_S)  # letting go needs Python's lock
        self._due = later

    def __enter__(self) -> "Loans":
        subscribe(self._issued, self._waited)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unsubscribe(self._issued)
        self._running.clear()

    def _issued(self, call: Call) -> None:
        self._running[call.sequence], self._lending = self._lending, []

    def _waited(self, call: Call) -> None:
        if loan := self._running.pop(call.sequence, []):
            self._due.append(loan)


def _references(tensor: Any) -> int:
    return tensor._use_count()  # torch's stubs do not know it


def _is_out(loan: Loan) -> bool:
    more = [lent.more() for lent in loan]
    return min(more) >= 1 and max(more) >= 2
