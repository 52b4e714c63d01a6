"""A checkpoint in shards: each rank writes one safetensors file, any number of them reads all.

    save_shard(folder, state_dict(zero.pieces, zero.optimizer, group), step=100)     # every rank
    dist.barrier(group)                                                              # all are there
    load_full_state(load_shards(folder, step=100), zero.pieces, zero.optimizer)

shard-00001-of-00004.safetensors holds a tensor "key/parameter" for each of the optimizer's and for
"weight", and the layout in its metadata: rank, number of ranks, step, and of each parameter the
shape and where the piece begins. A file is written whole or not at all, but nothing keeps a crash
from falling between two of them; then their steps differ, and the folder is refused. So write each
step into a folder of its own.
"""

import json
from pathlib import Path

from labkit.model.files import read_safetensors, write_safetensors
from labkit.parallel.sharded_state import FullState, PieceState, ShardState, merge

_LAYOUT = "shard_layout"


def shard_path(folder: str | Path, rank: int, world_size: int) -> Path:
    """Where a rank's shard lies."""
    return Path(folder) / f"shard-{rank:05}-of-{world_size:05}.safetensors"


def save_shard(folder: str | Path, state: ShardState, *, step: int) -> Path:
    """Write one rank's shard; the folder is made if it is missing."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{key}/{name}": tensor.contiguous()
        for name, piece in state.pieces.items()
        for key, tensor in piece.tensors.items()
    }
    layout = {
        "rank": state.rank,
        "world_size": state.world_size,
        "step": step,
        "pieces": {name: [piece.shape, piece.start] for name, piece in state.pieces.items()},
    }
    path = shard_path(folder, state.rank, state.world_size)
    write_safetensors(path, tensors, {_LAYOUT: json.dumps(layout)})
    return path


def load_shards(folder: str | Path, *, step: int | None = None) -> FullState:
    """The whole state out of the shards in a folder.

    Args:
        folder: with the files of one world, all of them.
        step: that of the state; None takes what is there.

    Raises:
        FileNotFoundError: if the folder has no shard, or one is missing.
        ValueError: for shards of two worlds or steps, of another step than asked for, for a file
            that is damaged or no shard, or one whose name and content differ.
    """
    paths = sorted(Path(folder).glob("shard-*-of-*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"no shard-*-of-*.safetensors in {folder}")
    sizes = sorted({int(path.stem.rpartition("-")[2]) for path in paths})
    if len(sizes) > 1:
        raise ValueError(f"{folder} has shards of {sizes[0]} and of {sizes[1]} ranks; keep one set")
    for rank in range(sizes[0]):
        if not (path := shard_path(folder, rank, sizes[0])).is_file():
            raise FileNotFoundError(
                f"{path} is missing: {len(paths)} of {sizes[0]} shards are there"
            )
    steps, shards = zip(*(_read(path) for path in paths), strict=True)
    for path, found in zip(paths, steps, strict=True):
        if found != (expected := steps[0] if step is None else step):
            raise ValueError(f"{path} is of step {found}, not {expected}")
    return merge(shards)


def _read(path: Path) -> tuple[int, ShardState]:
    tensors, metadata = read_safetensors(path)
    if _LAYOUT not in metadata:
        raise ValueError(f"{path} has no {_LAYOUT} in its metadata: it is no shard")
    layout = json.loads(metadata[_LAYOUT])
    rank, world_size = layout["rank"], layout["world_size"]
    if path.name != shard_path("", rank, world_size).name:
        raise ValueError(f"{path} holds the shard of rank {rank} of {world_size}: it was renamed")
    kept: dict[str, dict] = {name: {} for name in layout["pieces"]}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        kept[parameter][key] = tensor
    pieces = {
        name: PieceState(shape=tuple(shape), start=start, tensors=kept[name])
        for name, (shape, start) in layout["pieces"].items()
    }
    return layout["step"], ShardState(rank=rank, world_size=world_size, pieces=pieces)
