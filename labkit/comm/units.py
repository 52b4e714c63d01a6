"""Parameters that are gathered, used and dropped as one: the units of a sharded module.

A unit keeps its shard [s] in the module's place, as 1-d pieces (pieces.py). Its whole weights
[N s] have memory only between a gather and a drop.

Shapes: N ranks, s elements of a shard.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.pieces import Piece
from labkit.comm.shards import (
    FlatLayout,
    Reduction,
    finish_reduce_scatter,
    flat_gradient,
    set_gradients,
    start_all_gather,
    start_reduce_scatter,
)

Place = tuple[nn.Module, str, str]  # module, attribute, whole name
Places = list[list[Place]]  # of each parameter: one, or several where it is shared


class ShardedUnit:
    """Parameters that are gathered as one: a shard [s] that stays, and a buffer [N s] for a while.

    The buffer's memory is given back, not the buffer: what autograd saved points to it and finds
    the weights there again when they are gathered for backward.
    """

    def __init__(
        self, places: Places, group: dist.ProcessGroup, compute_dtype: torch.dtype | None
    ) -> None:
        self.places, self.group, self.rank = places, group, dist.get_rank(group)
        values = [getattr(owners[0][0], owners[0][1]) for owners in places]
        self.layout = FlatLayout(
            names=tuple(owners[0][2] for owners in places),
            shapes=tuple(value.shape for value in values),
            num_shards=dist.get_world_size(group),
        )
        whole = values[0].detach().new_zeros(self.layout.padded_numel)
        for view, value in zip(self.layout.views(whole), values, strict=True):
            view.copy_(value.detach())
        self.shard = whole.view(self.layout.num_shards, -1)[self.rank].clone()
        self.pieces: list[Piece] = self.layout.pieces(self.shard, self.rank)
        self.buffer = torch.empty_like(whole, dtype=compute_dtype)
        self.bytes = self.buffer.untyped_storage().nbytes()
        self.parameters: list[nn.Parameter] = []
        for view, value, piece in zip(
            self.layout.views(self.buffer), values, self.pieces, strict=True
        ):
            piece.parameter.requires_grad_(value.requires_grad)
            # .data: refilling the buffer is no change that autograd has to know of.
            self.parameters.append(nn.Parameter(view.data, requires_grad=value.requires_grad))
        self.works: list[dist.Work] | None = None  # None: the buffer has no memory
        self.in_backward = False
        self.gradient: torch.Tensor | None = None
        self.drop()

    @torch.no_grad()
    def start_gather(self) -> None:
        """Begin, unless it has begun."""
        if self.works is None:
            self.buffer.untyped_storage().resize_(self.bytes)
            self.buffer.view(self.layout.num_shards, -1)[self.rank].copy_(self.shard)
            self.works = start_all_gather(self.buffer, self.group)

    def gather(self) -> None:
        """Have the whole parameters in their places in the modules."""
        self.start_gather()
        self._wait()
        self._show(self.parameters)

    def drop(self) -> None:
        """Give the memory of the whole weights back; the pieces take their places."""
        self._wait()
        self._show([piece.parameter for piece in self.pieces])
        self.buffer.untyped_storage().resize_(0)
        self.works = None

    @torch.no_grad()
    def start_reduce(self) -> Reduction:
        """Send the whole gradients off, and drop them."""
        flat = flat_gradient(self.layout, self.parameters)
        for parameter in self.parameters:
            parameter.grad = None
        return start_reduce_scatter(flat, self.group)

    @torch.no_grad()
    def finish_reduce(self, reduction: Reduction) -> None:
        """Add what the ranks sent to the gradient of this rank's shard."""
        total = finish_reduce_scatter(reduction, self.shard.dtype)
        self.gradient = total if self.gradient is None else self.gradient.add_(total)

    def forget(self) -> None:
        """Drop the gradients: of a backward that failed."""
        self.gradient, self.in_backward = None, False
        for parameter in self.parameters:
            parameter.grad = None

    def give_gradients(self, mean_of: float) -> None:
        if self.gradient is not None:
            set_gradients(self.layout, self.pieces, self.gradient.div_(mean_of), self.rank)
        self.gradient = None

    def _wait(self) -> None:
        for work in self.works or []:
            work.wait()
        self.works = []

    def _show(self, parameters: Sequence[nn.Parameter]) -> None:
        for owners, parameter in zip(self.places, parameters, strict=True):
            for module, attribute, _ in owners:
                module._parameters[attribute] = parameter


def outermost_layers(module: nn.Module) -> list[nn.Module]:
    """The children of every ModuleList that is not in such a child itself."""
    layers: list[nn.Module] = []
    inside: set[int] = set()
    for each in module.modules():
        if isinstance(each, nn.ModuleList) and id(each) not in inside:
            for child in each:
                if id(child) not in inside:
                    layers.append(child)
                    inside |= {id(part) for part in child.modules()}
    return layers


def share_out(
    module: nn.Module,
    units: Sequence[nn.Module],
    keep: Callable[[str], bool] = lambda name: True,
) -> list[tuple[nn.Module, Places]]:
    """Units with their parameters, those without any left out; the module stands for the rest.

    Parameters whose names are not to be kept are in no unit.

    Raises:
        ValueError: for units outside the module or inside one another, a parameter shared by two
            units, or parameters of two dtypes in a unit.
    """
    owner_of = _owners(module, units)
    shares: dict[int, tuple[nn.Module, dict[int, list[Place]]]] = {}
    found: dict[int, tuple[nn.Module, str, torch.dtype]] = {}
    for prefix, each in module.named_modules():
        owner = owner_of.get(id(each), module)
        for attribute, parameter in each._parameters.items():
            name = f"{prefix}.{attribute}".removeprefix(".")
            if parameter is None or not keep(name):
                continue
            first, first_name, _ = found.setdefault(id(parameter), (owner, name, parameter.dtype))
            if first is not owner:
                raise ValueError(
                    f"{first_name} and {name} are one parameter in two units: "
                    "leave both in the root, or put both into one unit"
                )
            places = shares.setdefault(id(owner), (owner, {}))[1]
            places.setdefault(id(parameter), []).append((each, attribute, name))
            _, known_name, dtype = found[next(iter(places))]
            if dtype != parameter.dtype:
                raise ValueError(
                    f"{known_name} is {dtype}, {name} is {parameter.dtype}: a unit has one dtype"
                )
    return [(owner, list(places.values())) for owner, places in shares.values()]


def _owners(module: nn.Module, units: Sequence[nn.Module]) -> dict[int, nn.Module]:
    """The unit of each module that is in one."""
    names = {id(each): name for name, each in module.named_modules()}
    owner_of: dict[int, nn.Module] = {}
    for unit in units:
        if id(unit) not in names:
            raise ValueError(f"a unit of type {type(unit).__name__} is no part of the module")
        for each in unit.modules():
            if id(each) in owner_of:
                raise ValueError(f"{names[id(each)]} is in two units")
            owner_of[id(each)] = unit
    return owner_of
