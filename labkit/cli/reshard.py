"""python -m labkit reshard: write a checkpoint anew for another layout, or as one plain model."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--dp", type=int, help="Replicas; default 1.")
@click.option("--pp", type=int, help="Stages of the pipeline; default 1.")
@click.option("--tp", type=int, help="Ranks that share each matrix; default 1.")
@click.option("--zero", type=int, help="What dp shards, 0 to 3; default 0.")
@click.option("--export", "plain", is_flag=True, help="One model.safetensors and config.json.")
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "fp32"]),
    help="Of an exported model; default bf16.",
)
def reshard(source: Path, target: Path, plain: bool, dtype: str | None, **sizes: Any):
    """Write the checkpoint SOURCE anew in TARGET.

    SOURCE is the folder of a step, or of a run, of which the last complete step is taken. TARGET
    gets a folder of the step; with --export it is the model's folder.
    """
    import torch
    from tqdm import tqdm

    from labkit.compose import reshard as anew
    from labkit.compose.manifest import MANIFEST, latest
    from labkit.compose.plan import Plan

    given = {name: size for name, size in sizes.items() if size is not None}
    if plain and given:
        raise ValueError(f"--export writes one plain model, and --{min(given)} asks for a layout")
    if dtype and not plain:
        raise ValueError(f"--dtype {dtype} is of an exported model; add --export")
    folder = source if (source / MANIFEST).is_file() else latest(source)
    with tqdm(unit="B", unit_scale=True, unit_divisor=1000, desc=folder.name) as bar:
        if plain:
            wanted = torch.float32 if dtype == "fp32" else torch.bfloat16
            anew.export(folder, target, dtype=wanted, progress=bar.update)
        else:
            target = anew.reshard(folder, target, Plan(**given), progress=bar.update)
    click.echo(f"wrote {target}")
