"""The kernel that labs run in: the same for release and for grading, whatever the shell says.

nbval 0.11 waits its whole cell timeout, 2,000 s, for a kernel that has died. LabKernel looks once a
second.
"""

import os.path
import subprocess
import time
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager, RunningKernel

# PYTEST_CURRENT_TEST decides whether ipykernel catches what child processes print (no).
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
    "PYTEST_CURRENT_TEST": "labkit",
}
LOOK_S = 1.0


def kernel_manager() -> KernelManager:
    """A kernel of the Python that runs this, with ENVIRONMENT; not started yet."""
    manager = KernelManager(
        kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=NbvalKernelspecManager()
    )
    assert manager.kernel_spec is not None, "the kernel of this Python is always there"
    manager.kernel_spec.env.update(ENVIRONMENT)
    return manager


class LabKernel(RunningKernel):
    """A running kernel that is seen to die.

    Args:
        folder: its working directory.
        startup_timeout: in seconds.
    """

    def __init__(self, folder: str, startup_timeout: float) -> None:
        self.km = kernel_manager()
        self.km.start_kernel(stderr=subprocess.DEVNULL, cwd=os.path.abspath(folder))
        self.kc = self.km.client()
        self.kc.start_channels()
        try:
            self.kc.wait_for_ready(timeout=startup_timeout)
        except RuntimeError:
            self.stop()
            raise
        self._ensure_iopub_up()

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Wait for the answer to one request.

        Raises:
            Empty: after timeout seconds.
            RuntimeError: once the kernel is dead.
        """
        end = time.monotonic() + (1e9 if timeout is None else timeout)
        while True:
            message = self._next(min(LOOK_S, max(0.01, end - time.monotonic())))
            if message is None and time.monotonic() >= end:
                raise Empty
            if message and message["parent_header"].get("msg_id") == msg_id:
                return

    def _next(self, timeout: float) -> dict[str, Any] | None:
        try:
            return self.get_message("shell", timeout=timeout)
        except Empty:
            if not self.is_alive():
                raise RuntimeError(
                    "the kernel died in this cell (os._exit, out of memory, a crash in C code?)"
                ) from None
            return None
