"""What happens on the ranks while lab 05 is judged: the learner's layer is built, run and watched.

A rank decides nothing. It returns plain data; the parent, which holds the serial layer and never
runs a line of the learner's, compares.

One world serves many trials. A trial of tp = 2 cuts four ranks into two groups, ranks 0, 2 and
1, 3; each group has weights and inputs of its own, so a place in the group is not a rank of the
world, and a sum over the world is wrong.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.grade.lab02_ranks import lay_out
from labkit.measure.events import Launch, Wait
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.measure.memory import SavedActivations


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank is given in a trial.

    Args:
        whole: tensors of the whole layer, the same on all ranks of the group.
        inputs: of the call.
        grad: of its output.
    """

    whole: tuple[torch.Tensor | None, ...]
    inputs: tuple[torch.Tensor, ...]
    grad: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One layer, on groups of tp ranks.

    Args:
        world_size: ranks in all.
        told: what a message says of it.
        parts: one a rank of the world.
        rest: plain arguments between the whole tensors and the group.
        replicas: neighbours that hold the same KV heads; 0 where the layer gets no such group.
        strided: inputs and gradients are every third element of a larger tensor.
    """

    world_size: int
    tp: int
    told: str
    parts: tuple[Part, ...]
    rest: tuple[int, ...] = ()
    replicas: int = 0
    strided: bool = False

    def members(self, rank: int) -> tuple[int, ...]:
        """Global ranks of this rank's group."""
        stride = self.world_size // self.tp
        return tuple(range(rank % stride, self.world_size, stride))

    def place(self, rank: int) -> int:
        """This rank's place in its group."""
        return self.members(rank).index(rank)

    def sharers(self, rank: int) -> tuple[int, ...]:
        """Global ranks that hold the same KV heads as this one."""
        place, members = self.place(rank), self.members(rank)
        first = place - place % self.replicas
        return members[first : first + self.replicas]


def run_layers(world: dist.ProcessGroup, build: Callable, trials: Sequence[Trial]) -> list[dict]:
    """Build, call and differentiate the learner's layer once for every trial.

    Args:
        build: the learner's class, called as build(*whole, *rest, group).
    """
    return [_with_case(_layer, trial, build, groups) for trial, groups in _grouped(world, trials)]


def run_functions(
    world: dist.ProcessGroup, functions: Sequence[Callable], trials: Sequence[Trial]
) -> list[list[dict]]:
    """The same for plain functions f(*inputs, *rest, group): one record for each of them."""
    return [
        [_with_case(_call, trial, function, groups) for function in functions]
        for trial, groups in _grouped(world, trials)
    ]


def run_function(
    world: dist.ProcessGroup, function: Callable, trials: Sequence[Trial]
) -> list[dict]:
    """The same for one function."""
    return [_with_case(_call, trial, function, groups) for trial, groups in _grouped(world, trials)]


def _grouped(
    world: dist.ProcessGroup, trials: Sequence[Trial]
) -> Iterator[tuple[Trial, list[dist.ProcessGroup]]]:
    """Every trial with this rank's groups; all groups are made first, on all ranks in one order."""
    rank, made, groups = dist.get_rank(), {}, []
    everybody = range(dist.get_world_size())
    for trial in trials:
        kinds = {"tp": [trial.members(r) for r in everybody]}
        if trial.replicas:
            kinds["replicas"] = [trial.sharers(r) for r in everybody]
        own = []
        for name, lines in kinds.items():
            for line in dict.fromkeys(lines):
                if (name, line) not in made:
                    made[name, line] = dist.new_group(list(line), group_desc=name)
            own.append(made[name, lines[rank]])
        groups.append(own)
    yield from zip(trials, groups, strict=True)


def _with_case(watch: Callable, trial: Trial, learner: Any, groups: list[Any]) -> dict[str, Any]:
    try:
        return watch(trial, learner, groups)
    except NotImplementedError:
        raise
    except Exception as error:
        error.args = (f"{error} (with {trial.told})",)  # what the parent shows
        raise


def _layer(trial: Trial, build: Callable, groups: list[Any]) -> dict[str, Any]:
    part = trial.parts[dist.get_rank()]
    whole = [None if tensor is None else tensor.clone() for tensor in part.whole]
    storages = [None if x is None else weakref.ref(x.untyped_storage()) for x in whole]
    layer = build(*whole, *trial.rest, *groups)
    del whole
    named = {_short(name): p for name, p in layer.named_parameters()}
    held = {_memory(x): x.untyped_storage().nbytes() for x in _own_tensors(layer)}
    seen: dict[str, Any] = {
        "parameters": {name: p.detach().clone() for name, p in named.items()},
        "held_bytes": sum(held.values()),
        "alive": [storage is not None and storage() is not None for storage in storages],
    }
    with SavedActivations(layer) as saved:
        seen |= _observe(layer, trial, part)
    seen["saved"] = [tuple(tensor.shape) for tensor in saved.saved]
    seen["grads"] = {name: _copy(p.grad) for name, p in named.items()}
    for parameter in named.values():
        parameter.grad = None
    seen["again"] = _observe(layer, trial, part)["output"]
    seen["grads_again"] = {name: _copy(p.grad) for name, p in named.items()}
    return seen


def _call(trial: Trial, function: Callable, groups: list[Any]) -> dict[str, Any]:
    part = trial.parts[dist.get_rank()]

    def with_rest(*inputs: torch.Tensor) -> torch.Tensor:
        return function(*inputs, *trial.rest, *groups)

    seen = _observe(with_rest, trial, part)
    return seen | {"again": _observe(with_rest, trial, part)["output"]}


def _observe(function: Callable, trial: Trial, part: Part) -> dict[str, Any]:
    """One call and its backward: results, what they sent, and whether they left things alone."""
    inputs = [lay_out(x, trial.strided) for x in part.inputs]
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    grad = lay_out(part.grad, trial.strided)
    with EventLog() as log, CommLedger() as forward:
        output = function(*inputs)
    seen: dict[str, Any] = {"output": _copy(output), "forward": forward.ops, "backward": []}
    seen["attached"] = isinstance(output, torch.Tensor) and output.requires_grad
    fits = seen["attached"] and output.shape == grad.shape and output.dtype == grad.dtype
    with EventLog() as back_log, CommLedger() as backward:
        if fits:
            torch.autograd.backward(output, grad)
    seen["backward"] = backward.ops
    seen["unwaited"] = _unwaited(log) + _unwaited(back_log)
    seen["inputs"] = tuple(x.detach().clone() for x in inputs)
    seen["grad"] = grad.clone()
    seen["input_grads"] = tuple(_copy(x.grad) for x in inputs)
    return seen


def _unwaited(log: EventLog) -> list[str]:
    waited = {event.id for event in log.events if isinstance(event, Wait)}
    return [e.operation for e in log.events if isinstance(e, Launch) and e.id not in waited]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _short(name: str) -> str:
    """A shard may be a parameter, or the weight of a linear layer of the same name."""
    return name.removesuffix(".weight")


def _own_tensors(layer: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors that hang on a module in any other way."""
    yield from layer.parameters()
    yield from layer.buffers()
    for module in layer.modules():
        for value in vars(module).values():
            items = value.values() if isinstance(value, dict) else value
            items = items if isinstance(value, dict | list | tuple) else [value]
            yield from (item for item in items if isinstance(item, torch.Tensor))


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()
