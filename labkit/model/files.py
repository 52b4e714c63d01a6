"""Files that are whole or absent, and tensors from safetensors only.

Writes go to a temporary file in the same folder, which is then renamed. Reads refuse a pickle
before a byte of it is run, and a damaged file with its name and size.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_NAMES = {  # of the types that safetensors has and we write
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A tensor that is made when it is its turn to be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]


def read_json(path: str | Path) -> Any:
    """A JSON file.

    Raises:
        ValueError: if it is damaged; the message names it.
    """
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


def read_safetensors(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata of one file.

    Raises:
        FileNotFoundError, ValueError: a pickle or a damaged file; the message says the way out.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    with path.open("rb") as file:
        head = file.read(9)
    # Safetensors: 8 bytes of length, the first may be 0x80, then JSON. Pickle: 0x80. torch: a zip.
    if head[8:] != b"{" and head[:1] in (b"\x80", b"P"):
        raise ValueError(
            f"{path} is a pickle (a torch.save file); loading one can run any code. Convert it "
            "where you trust it, with safetensors.torch.save_file, and give the .safetensors file"
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} ({path.stat().st_size} bytes) is damaged or no safetensors file: {error}. "
            "Fetch or write it again"
        ) from None


def write_safetensors(
    path: str | Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    """Write a file whole or not at all."""
    with _temporary_beside(Path(path)) as temporary:
        save_file(tensors, temporary, metadata)


def write_streamed(
    path: str | Path, pending: Mapping[str, Pending], metadata: Mapping[str, str]
) -> int:
    """Write a safetensors file whole or not at all, one tensor in memory at a time.

    Returns:
        The file's size. It is on the disk, not only in the system's memory.

    Raises:
        ValueError: if a tensor is of another type or shape than it was announced to be.
        OSError: if the disk is full; what was there before stays.
    """
    order = sorted(pending, key=lambda name: (-pending[name].dtype.itemsize, name))  # all aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        dtype, shape = pending[name].dtype, pending[name].shape
        begin, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with _temporary_beside(Path(path)) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensor = pending[name].make()
            if (tensor.dtype, tuple(tensor.shape)) != (pending[name].dtype, pending[name].shape):
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: {pending[name]}")
            numbers = tensor.detach().cpu().contiguous().view(-1)
            file.write(numbers.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end


def write_atomically(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with _temporary_beside(Path(path)) as temporary:
        temporary.write_text(text)


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A path in the same folder that replaces `path` if the block ends well and vanishes if not."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp's 0600 is for secrets
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
