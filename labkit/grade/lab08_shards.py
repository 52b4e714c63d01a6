"""A checkpoint of pp x tp ranks in lab 08, in memory, of which every read is written down.

    files.read(pp_rank, tp_rank, name, start, end)      some rows or columns of what a rank saved

Rank (pp_rank, tp_rank) saved the layers of its stage, each tensor cut as its `Split` says
(labkit/comm/split.py): into `parts` pieces of `piece` rows or columns each, the last one filled up
with zeros. Rank r has piece r * parts // tp: where there are fewer parts than ranks, neighbours
hold the same one.

Cost: a copy of what is read.
"""

from collections.abc import Mapping

import torch

from labkit.comm.split import Split
from labkit.model.config import ModelConfig
from labkit.parallel.pipeline import split_layers

HEADS = ("k_proj", "v_proj")
COLUMNS = ("o_proj", "down_proj")


class ShardFiles:
    """What the ranks of one layout saved.

    Args:
        state: tensors of the whole model, by name.
        config: of the model.
        pp, tp: sizes of the layout that saved.

    Attributes:
        names: of all parameters of the model.
        reads: (pp_rank, tp_rank, name, numbers) of each read.
    """

    def __init__(
        self, state: Mapping[str, torch.Tensor], config: ModelConfig, *, pp: int, tp: int
    ) -> None:
        self.pp, self.tp = pp, tp
        self.names = tuple(state)
        self.reads: list[tuple[int, int, str, int]] = []
        self._config = config
        self._shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        self._saved = {
            (self.stage(name, pp), tp_rank, name): self.split(name, tp).cut(tensor, tp_rank, tp)
            for name, tensor in state.items()
            for tp_rank in range(tp)
        }

    def split(self, name: str, tp: int) -> Split:
        """How a parameter is cut over tp ranks."""
        shape, owner = self._shapes[name], name.split(".")[-2]
        if len(shape) == 1:
            return Split(size=shape[0])
        dim = 1 if owner in COLUMNS else 0
        most = self._config.num_kv_heads if owner in HEADS else tp
        return Split(dim=dim, size=shape[dim], parts=min(tp, most))

    def stage(self, name: str, pp: int) -> int:
        """Which of pp stages holds a parameter."""
        kind, _, rest = name.partition(".")
        if kind != "layers":
            return 0 if kind == "embed_tokens" else pp - 1
        layer, parts = int(rest.partition(".")[0]), split_layers(self._config.num_layers, pp)
        return next(stage for stage, layers in enumerate(parts) if layer in layers)

    def read(
        self, pp_rank: int, tp_rank: int, name: str, start: int = 0, end: int | None = None
    ) -> torch.Tensor:
        """A copy of what a rank saved: from start to end on the dimension that is cut.

        Raises:
            ValueError: if the rank did not save this tensor, or it is smaller.
        """
        saved = self._saved.get((pp_rank, tp_rank, name))
        if saved is None:
            raise ValueError(
                f"rank pp={pp_rank}, tp={tp_rank} of {self.pp} x {self.tp} did not save {name}"
            )
        dim = self.split(name, self.tp).dim
        size = saved.shape[dim]
        end = size if end is None else end
        if not 0 <= start <= end <= size:
            raise ValueError(f"{name} has {size} on dim {dim} there, not {start} to {end}")
        part = saved.narrow(dim, start, end - start).clone()
        self.reads.append((pp_rank, tp_rank, name, part.numel()))
        return part
