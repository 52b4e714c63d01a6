"""JupyterLab as a learner starts it, on a folder of its own, and a notebook in a browser."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Locator, Page, expect

START_S, RUN_S, STOP_S = 90, 120, 20
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
STATES = ("CONFIG", "DATA", "RUNTIME")


@contextmanager
def jupyter_lab(folder: Path, home: Path) -> Iterator[str]:
    """Serve folder on a free port with a token; yield the address, and leave no process behind.

    Args:
        home: where JupyterLab keeps settings and logs, so that the user's own play no part.
    """
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--ip=127.0.0.1", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    own = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in STATES}
    own |= {
        f"JUPYTERLAB_{name}_DIR": str(home / name.lower()) for name in ("SETTINGS", "WORKSPACES")
    }
    server = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **own, "IPYTHONDIR": str(home / "ipython")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _address(server)
    finally:
        _stop(server)


def _address(server: subprocess.Popen) -> str:
    """The line in which the server says where it is; the rest is read and dropped."""
    assert server.stderr is not None, "it is a pipe"
    too_late = threading.Timer(START_S, server.kill)
    too_late.start()
    said = []
    for line in server.stderr:
        said.append(line)
        if found := ADDRESS.search(line):
            too_late.cancel()
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return found[0]
    too_late.cancel()
    raise AssertionError("JupyterLab did not start:\n" + "".join(said[-20:]))


def _stop(server: subprocess.Popen) -> None:
    """End the server; it ends its kernels, and they their ranks.

    Raises:
        AssertionError: if a process was left; it is killed.
    """
    family = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    _, left = psutil.wait_procs([psutil.Process(server.pid), *family], timeout=STOP_S)
    names = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    server.wait()
    assert names == [], "left behind"


class Notebook:
    """A notebook on a page of JupyterLab, in the hands of a learner."""

    def __init__(self, page: Page, address: str, name: str) -> None:
        self.page = page
        self.num_runs = 0
        page.goto(address.replace("/lab?", f"/lab/tree/{name}?"))
        self._idle()

    def cell(self, number: int) -> Locator:
        """A cell by its place in the notebook; cells far from what is shown are not on the page."""
        return self.page.locator(f'.jp-Notebook [data-windowed-list-index="{number}"]')

    def write(self, number: int, text: str) -> None:
        """Replace what stands in a cell."""
        text_of_cell = self.cell(number).locator(".cm-content")
        text_of_cell.click()
        text_of_cell.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)

    def run(self, number: int) -> str:
        """Run a cell by the button of the toolbar, wait for its end, and return what it printed.

        Raises:
            AssertionError: if it does not end.
        """
        self.cell(number).locator(".cm-content").click()
        self.page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="run"]').click()
        self.num_runs += (
            1  # the kernel counts them, and the count stands beside the cell in the end
        )
        prompt = self.cell(number).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(f"[{self.num_runs}]:", timeout=RUN_S * 1000)
        self._idle()
        return self.cell(number).locator(".jp-OutputArea").inner_text()

    def save(self) -> None:
        """Save, and wait until the tab no longer says that something is unsaved."""
        self.page.keyboard.press("ControlOrMeta+s")
        self.page.wait_for_selector(".jp-mod-dirty", state="detached")

    def _idle(self) -> None:
        """Wait until the status bar says that the kernel is there and does nothing."""
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
