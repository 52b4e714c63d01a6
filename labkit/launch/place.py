"""Where ranks run: their devices, their meeting point and their environment variables."""

import os
import socket

import torch
import torch.distributed as dist


def num_gpus() -> int:
    """GPUs that NCCL could use; counting starts no CUDA context."""
    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def choose_gpu(world_size: int, device: str | None) -> bool:
    """Whether each rank gets a GPU of its own.

    Raises:
        ValueError: if it must and there are too few.
    """
    if device == "cpu":
        return False
    available = num_gpus()
    if available < world_size:
        told = f"{world_size} ranks over {available} GPU{'s' if available != 1 else ''}"
        if device == "cuda":
            raise ValueError(f'{told}: each rank needs its own; use fewer ranks or device="cpu"')
        if available:
            print(f"{told}: running on the CPU")
    return available >= world_size


def open_store() -> dist.TCPStore:
    """The world's rendezvous, in the parent, at a free port of 127.0.0.1 only."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        return dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def world_environment(world_size: int, port: int) -> dict[str, str]:
    """What torchrun would set, but for RANK and LOCAL_RANK, over this process's variables."""
    return {
        "OMP_NUM_THREADS": "1",
        **loopback(),
        **os.environ,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store runs already: join it
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def torchrun_size() -> int | None:
    """Number of ranks of the world that torchrun started this process for; None outside of it."""
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return None
    return int(os.environ["WORLD_SIZE"])


def loopback() -> dict[str, str]:
    """Gloo uses the host name's address, which may not resolve; within one host this will do."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", names[0])} if names else {}
