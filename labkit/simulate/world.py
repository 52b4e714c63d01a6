"""A world of any size in one process: torch's fake process group, and tensors without numbers.

    with fake_world(1024, rank=0):
        mesh = Mesh(dp=128, tp=8)
        ...                             # any labkit code, unchanged, as this rank

Every call of torch.distributed is issued and heard as in a real world, and returns at once. Every
tensor has a shape, a dtype and a storage of the right size, and no memory.

A tensor without numbers has no value to ask for. Code that asks all the same is told 0, or False:
"every parameter was used", "all words are in the vocabulary", "the ranks have 0 tokens". That is
the only answer this file invents, and a real world never sees it.

Objects (`all_gather_object`) cannot be asked of ranks that are not there: code that is to run here
gets by without them (run_schedule takes its boundaries from a caller that knows them).

Cost: about 0.05 ms a torch operation. The shortcuts below do what FakeTensorMode would, without its
search; 1,024 ranks that send shard by shard make half a million messages a step.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# Operations that only make a tensor out of another: exchanges call them for every peer. (And
# FakeTensorMode's detach gives a parameter whose `.data` was replaced a storage of its own.)
QUICK = {aten.select.int, aten.unbind.int, aten.detach.default, aten.empty_like.default}


@contextmanager
def fake_world(world_size: int, rank: int) -> Iterator[TorchDispatchMode]:
    """This process is `rank` of a world of `world_size` inside; its tensors hold no numbers.

    Yields:
        The mode that answers and takes shortcuts. Enter it once more above modes that need not see
        what it takes the short way, such as a count of FLOPs: that saves half of the time.

    Raises:
        ValueError: for a rank that the world does not have.
        RuntimeError: if this process is in a world already.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of a world of {world_size}: ranks are 0 to {world_size - 1}")
    if dist.is_initialized():
        raise RuntimeError("this process is in a world already: a fake one needs its own process")
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        # Tables of positions and the like may be built outside: they are read as if they were fake.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with _plain_waits(), warnings.catch_warnings(), mode, _Answers(mode) as answers:
            # copy.deepcopy of a parameter asks where its numbers are; it does not go there.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            yield answers
    finally:
        dist.destroy_process_group()


@contextmanager
def _plain_waits() -> Iterator[None]:
    """Without the fake handles' own `wait`, which hides that of all handles: logs listen to it."""
    own = FakeWork.wait
    del FakeWork.wait
    try:
        yield
    finally:
        setattr(FakeWork, "wait", own)  # noqa: B010 (the stub calls it a method)


class _Answers(TorchDispatchMode):
    """Stands before the fake tensors: answers what they cannot, and takes the short way."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard against it costs more than the rest

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if func is aten._local_scalar_dense.default and args[0].constant is None:
            return _zero(args[0].dtype)
        if func.namespace == "c10d":  # the fake group works in place, on what it is given
            with in_kernel_invocation_manager(self.mode):
                return func(*args, **(kwargs or {}))
        if func is aten.add_.Tensor and not kwargs and _adds_numbers(*args):
            return args[0]  # it changes nothing that can be seen
        if func in QUICK and isinstance(args[0], FakeTensor):
            with in_kernel_invocation_manager(self.mode):
                made = func(*args, **(kwargs or {}))
            several, device = isinstance(made, (list, tuple)), args[0].fake_device
            fakes = [FakeTensor(self.mode, x, device) for x in (made if several else [made])]
            return fakes if several else fakes[0]
        return func(*args, **(kwargs or {}))


def _zero(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0


def _adds_numbers(x: Any, y: Any) -> bool:
    """Two fake tensors of one shape, whose sum is of the first one's dtype."""
    return (
        isinstance(x, FakeTensor)
        and isinstance(y, FakeTensor)
        and x.shape == y.shape
        and x.is_floating_point()
        and y.is_floating_point()
    )
