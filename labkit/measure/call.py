"""One communication call, read from the arguments of torch's operator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .convention import split_bytes, tensor_bytes, traffic

# Every operator that communicates. Python names that torch renames (all_gather_into_tensor) end in
# the same operator under both names.
OPERATIONS = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::allgather_": "all_gather",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_coalesced_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::broadcast_": "broadcast",
    "c10d::scatter_": "scatter",
    "c10d::reduce_": "reduce",
    "c10d::gather_": "gather",
    "c10d::barrier": "barrier",
    "c10d::monitored_barrier_": "barrier",
    "c10d::send": "send",
    "c10d::recv_": "recv",
    "c10d::recv_any_source_": "recv",
    "_c10d_functional::all_reduce": "all_reduce",
    "_c10d_functional::all_reduce_": "all_reduce",
    "_c10d_functional::all_reduce_coalesced": "all_reduce",
    "_c10d_functional::all_reduce_coalesced_": "all_reduce",
    "_c10d_functional::all_gather_into_tensor": "all_gather",
    "_c10d_functional::all_gather_into_tensor_out": "all_gather",
    "_c10d_functional::all_gather_into_tensor_coalesced": "all_gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional::reduce_scatter_tensor_out": "reduce_scatter",
    "_c10d_functional::reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_c10d_functional::all_to_all_single": "all_to_all",
    "_c10d_functional::broadcast": "broadcast",
    "_c10d_functional::broadcast_": "broadcast",
    "_c10d_functional::isend": "send",
    "_c10d_functional::irecv": "recv",
}
INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of this rank; every field is plain data, so a rank can return it.

    Args:
        sequence: counts the calls of this process from 0.
        operation: a name from the table in ledger.py.
        payload_bytes: this rank's input; what arrives, for a recv and away from a root's broadcast
            or scatter.
        shapes: of the tensors that make up the payload.
        dtype: of the payload; None for a barrier.
        axis: the group's description: a mesh axis, "world", or the ranks of a group without one.
        group_name: torch's name of the group, the same on all its ranks.
        ranks: global ranks of the group, in group order.
        rank, group_rank: this process in the world and in the group.
        peer: global rank at the other end (None: a recv from anyone), or the root.
        tag: of a send or recv.
        reduce_op: sum, avg, max, ...
        asynchronous: the caller did not stop for it.
        native: issued by torch's C++ code (torch DDP), so nobody hears it being waited for.
        sends, expects: of an all_to_all, bytes for and from each group rank.
        thread: name of the thread that issued it.
        where: "file.py:12", the caller's line.
    """

    sequence: int
    operation: str
    payload_bytes: int
    bytes_sent: int
    bytes_received: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype | None
    axis: str
    group_name: str
    ranks: tuple[int, ...]
    rank: int
    group_rank: int
    peer: int | None
    tag: int
    reduce_op: str | None
    asynchronous: bool
    native: bool
    sends: tuple[int, ...]
    expects: tuple[int, ...]
    thread: str
    where: str

    def __str__(self) -> str:
        """Such as "all_reduce(float32 [4]) at lab.py:12"."""
        kind = str(self.dtype).removeprefix("torch.")
        told = [f"{kind} {' '.join(str(list(shape)) for shape in self.shapes)}"] * bool(self.shapes)
        if self.operation in ("send", "recv"):
            other = "anyone" if self.peer is None else f"rank {self.peer}"
            told.append(f"{'to' if self.operation == 'send' else 'from'} {other}")
        elif self.peer is not None:
            told.append(f"root {self.peer}")
        if self.reduce_op not in (None, "sum"):
            told.append(str(self.reduce_op))
        if self.tag:
            told.append(f"tag {self.tag}")
        return f"{self.operation}({', '.join(told)}) at {self.where}"


def read_call(name: str, arguments: Mapping[str, Any], group: "Group", **context: Any) -> Call:
    """Read one call from an operator's arguments by name; context holds the fields it lacks.

    Raises:
        ValueError: if the other end is not a rank of the group.
    """
    operation = OPERATIONS[name]
    inputs, outputs = _first(arguments, INPUTS), _first(arguments, OUTPUTS)
    if operation == "barrier":
        inputs = []
    elif operation == "scatter" and not inputs:
        inputs = outputs
    payload = sum(tensor_bytes(x) for x in inputs)
    me, root = group.group_rank, _peer(arguments)
    if root is not None and not 0 <= root < len(group.ranks):
        raise ValueError(f"{operation} names rank {root}; the group has {len(group.ranks)} ranks")
    sends, expects = _splits(arguments, inputs, outputs, len(group.ranks), operation)
    sent, received = traffic(operation, payload, len(group.ranks), me, root, sends, expects)
    return Call(
        operation=operation,
        payload_bytes=payload,
        bytes_sent=sent,
        bytes_received=received,
        shapes=tuple(tuple(x.shape) for x in inputs),
        dtype=inputs[0].dtype if inputs else None,
        axis=group.axis,
        group_name=group.name,
        ranks=group.ranks,
        rank=group.ranks[me],
        group_rank=me,
        peer=None if root is None else group.ranks[root],
        tag=arguments.get("tag", 0),
        reduce_op=_reduce_op(arguments.get("reduce_op")),
        sends=sends,
        expects=expects,
        **context,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What a call needs to know of its process group."""

    name: str
    axis: str
    ranks: tuple[int, ...]
    group_rank: int


def process_group(arguments: Mapping[str, Any]) -> dist.ProcessGroup:
    """The group among an operator's arguments: a script object, or the name or itself."""
    handle = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(handle, torch.ScriptObject):
        return dist.ProcessGroup.unbox(handle)
    return dist.distributed_c10d._resolve_process_group(handle)  # type: ignore[arg-type]


def read_group(group: dist.ProcessGroup) -> Group:
    """Look up a group's ranks and its axis."""
    known = dist.distributed_c10d._world.pg_group_ranks.get(group)
    # A group that torch's Python layer does not know has no global ranks but its own.
    ranks = tuple(range(group.size())) if known is None else tuple(known)
    axis = group.group_desc
    if axis == "default_pg":
        axis = "world"
    elif axis in ("", "undefined"):
        axis = "ranks " + ",".join(map(str, ranks if len(ranks) <= 8 else (*ranks[:4], "...")))
    name = group.group_name if known is not None else ""
    return Group(name=name, axis=axis, ranks=ranks, group_rank=group.rank())


def _splits(
    arguments: Mapping[str, Any],
    inputs: list[torch.Tensor],
    outputs: list[torch.Tensor],
    n: int,
    operation: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes for and from each rank of an all-to-all."""
    if operation != "all_to_all":
        return (), ()
    if "input_split_sizes" not in arguments:
        return tuple(map(tensor_bytes, inputs)), tuple(map(tensor_bytes, outputs))
    source = inputs[0]
    target = outputs[0] if outputs else source  # the functional operator makes its own output
    return (
        split_bytes(source, arguments["input_split_sizes"], n),
        split_bytes(target, arguments["output_split_sizes"], n),
    )


def _peer(arguments: Mapping[str, Any]) -> int | None:
    """Group rank of the root, or of the other end."""
    return next((arguments[k] for k in ("root_rank", "dst", "src") if k in arguments), None)


def _reduce_op(op: Any) -> str | None:
    if op is None or isinstance(op, str):
        return op
    return dist.ReduceOp.RedOpType(op.op()).name.lower()


def _first(arguments: Mapping[str, Any], names: Sequence[str]) -> list[torch.Tensor]:
    return next((_flat(arguments[name]) for name in names if name in arguments), [])


def _flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [tensor for item in x or () for tensor in _flat(item)]
