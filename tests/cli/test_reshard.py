"""The command `reshard`: another layout, or one plain model that load_checkpoint reads.

Promised: the exported model is the one that was saved, to the last bit in fp32, and writes the same
tokens; memory stays far under the checkpoint's size; a caller's mistake is one line. Oracles: the
state that was saved, and nano as it is shipped.
"""

import re
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from click.testing import CliRunner

from labkit.cli import main
from labkit.comm.mesh import Mesh
from labkit.compose import Plan, parallelize
from labkit.compose.layout_files import Part, open_folder, write_file
from labkit.compose.manifest import latest, read_manifest, step_folder, write_manifest
from labkit.compose.parallel_files import save_parallel
from labkit.compose.slices import Slice
from labkit.launch import run_ranks
from labkit.model.checkpoint import load_checkpoint
from labkit.model.config import PRESETS
from labkit.model.files import Pending
from labkit.model.generate import generate
from labkit.model.tokenizer import encode
from labkit.model.transformer import Transformer

MIB = 2**20
WIDE = replace(
    PRESETS["nano"], num_layers=12, hidden_size=1024, intermediate_size=2816, head_dim=256
)


def save_nano(group, root):
    mesh, plan = Mesh(pp=2, tp=2), Plan(pp=2, tp=2)
    make = partial(torch.optim.AdamW, lr=1e-3)
    save_parallel(root, parallelize(load_checkpoint("nano"), plan, mesh, make), step=3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    run_ranks(save_nano, 4, root)
    return root


def call(*arguments):
    return CliRunner().invoke(main, ["reshard", *map(str, arguments)])


def tokens(model):
    return list(generate(model.eval(), encode("ROMEO.\n"), 40, temperature=0.0))


@pytest.mark.parametrize("layout", ["--tp 1", "--tp 4", "--pp 4", "--dp 2 --zero 3 --tp 2"])
def test_through_a_layout_to_a_plain_model(layout, saved, tmp_path):
    result = call(saved, tmp_path / "new", *layout.split())
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'new' / 'step-00000003'}" in result.output
    plan = read_manifest(latest(tmp_path / "new")).plan
    assert all(plan[name] == int(n) for name, n in re.findall(r"--(\w+) (\d)", layout))
    assert call(tmp_path / "new", tmp_path / "back", "--pp", 2, "--tp", 2).exit_code == 0
    result = call(latest(tmp_path / "back"), tmp_path / "plain", "--export", "--dtype", "fp32")
    assert result.exit_code == 0, result.output
    shipped, got = load_checkpoint("nano"), load_checkpoint(tmp_path / "plain")
    assert got.config == shipped.config
    for name, tensor in shipped.state_dict().items():
        assert torch.equal(got.state_dict()[name], tensor), name
    assert tokens(got) == tokens(shipped)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", 3], "4 heads over tp=3"),
        (["--pp", 8], "4 layers over 8 stages"),
        (["--export", "--tp", 2], "--tp asks for a layout"),
        (["--dtype", "fp32"], "add --export"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, saved, tmp_path):
    result = call(saved, tmp_path / "new", *arguments)
    assert result.exit_code == 2
    assert message in result.output.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_nothing_there(tmp_path):
    result = call(tmp_path, tmp_path / "new", "--tp", 2)
    assert result.exit_code == 2
    assert "no complete checkpoint" in result.output


def write_wide(root, config):
    """A checkpoint of one file, a tensor in memory at a time; returns its bytes."""
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Transformer(config).named_parameters()}
    parts = []
    for name, shape in shapes.items():
        dim = 1 if "o_proj" in name or "down_proj" in name else 0
        numel = torch.Size(shape).numel()
        make = partial(torch.zeros, numel)
        parts.append(
            Part(
                name=name,
                slice=Slice(shape=shape, dim=dim, width=shape[dim], numel=numel),
                tensors={"weight": Pending(dtype=torch.float32, shape=(numel,), make=make)},
            )
        )
    folder = step_folder(root, 1)
    open_folder(folder)
    told = write_file(folder / "rank-00000-of-00001.safetensors", parts)
    write_manifest(folder, [told], step=1, model=asdict(config), plan=asdict(Plan()))
    return told["bytes"]


MEASURE = """
import re, sys, torch
from pathlib import Path
from labkit.compose.manifest import latest
from labkit.compose.plan import Plan
from labkit.compose.reshard import reshard

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before, most = anonymous(), 0

def look(numbers):
    global most
    most = max(most, anonymous())

reshard(latest(sys.argv[1]), sys.argv[2], Plan(tp=2, pp=2), progress=look)
print(most - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc/self/status")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    """Of over 200 MiB the largest piece is in memory, and 24 MiB of rest."""
    size = write_wide(tmp_path / "a", WIDE)
    assert size > 200 * MIB
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "a", tmp_path / "b"],
        check=True,
        capture_output=True,
        text=True,
    )
    largest = 1024 * 2816 // 2 * 4
    assert int(done.stdout) < largest + 24 * MIB < size / 5
