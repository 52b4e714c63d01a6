"""One fork server for the whole run, and one thread a process: ranks share this machine's cores."""

import pytest
import torch

from labkit.launch import run_ranks

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def warm_fork_server():
    """The first world pays for the server's import of torch; no test should."""
    run_ranks(lambda group: None, 1)
