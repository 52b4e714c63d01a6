"""A tensor must lie where its group can reach it."""

import torch
import torch.distributed as dist


def require_device(x: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Check, before anything is sent, that the group has a backend for the device of x.

    Without this a CPU group passes a meta tensor on as if it had been sent, and the mistake
    shows somewhere else.

    Raises:
        ValueError: naming the device and those of the group.
    """
    reachable = sorted({device.type for device in group._device_types})
    if x.device.type not in reachable:
        raise ValueError(
            f"a tensor on {x.device} over a group that reaches {' and '.join(reachable)}; "
            "move it to labkit.launch.device() first"
        )
