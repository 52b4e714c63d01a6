"""python -m labkit plan: the fastest layouts of a model on many devices, and why others are none.

Exit code 0 with a layout that fits; 1 where none does, which is a result: the nearest misses are
listed with what they lack; 2 for a question that has no answer: an unknown model, device or unit,
devices that do not fill their nodes, a batch below one sequence, numbers of which nothing divides.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.cost.cluster import Cluster
    from labkit.cost.planner import Candidate, Ranking

USABLE = 0.9
COLUMNS = ("dp", "pp", "tp", "cp", "ep", "zero", "recompute", "sp", "b", "m", "v")


@click.command()
@click.option("--model", required=True, help="A known architecture: llama3-70b, say.")
@click.option("--gpus", type=int, required=True, help="How many devices.")
@click.option("--gpu", default="h100", show_default=True, help="What kind: a100-80, h100, b200 ...")
@click.option("--sequence", default="8192", show_default=True, help="Tokens a sequence.")
@click.option("--batch-tokens", required=True, help="Tokens a step, over all devices: 4e6, 16M.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True)
@click.option("--intra", help="Link inside a node; default: the device's own.")
@click.option("--inter", default="infiniband-ndr", show_default=True, help="Adapter of a device.")
@click.option(
    "--recipe",
    type=click.Choice(["mixed", "autocast"]),
    default="mixed",
    show_default=True,
    help="Bytes a parameter: 2 + 2 + 12, or 4 + 4 + 8. Products are in 16 bits in both.",
)
@click.option(
    "--budget",
    type=float,
    default=USABLE,
    show_default=True,
    help="Share of a device's memory to fill; the rest is the context's, the communication "
    "library's, workspaces' and fragments', which no formula here counts.",
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same, for a program.")
def plan(model: str, gpus: int, gpu: str, as_json: bool, top: int, **given: Any) -> None:
    """Rank all layouts of a model on many devices by their predicted step time.

    Exit code 1 where nothing fits: the nearest misses are listed, with what they lack.
    """
    from labkit.cost.architecture import architecture
    from labkit.cost.memory import RECIPES
    from labkit.cost.planner import plan as ranked
    from labkit.cost.units import parse_units

    cluster = _cluster(gpu, given["gpus_per_node"], given["intra"], given["inter"])
    batch_tokens = parse_units(given["batch_tokens"])
    ranking = ranked(
        architecture(model),
        num_devices=gpus,
        cluster=cluster,
        seq_len=_whole(given["sequence"], "--sequence"),
        batch_tokens=batch_tokens,
        recipe=RECIPES[given["recipe"]],
        usable=given["budget"],
    )
    if as_json:
        click.echo(json.dumps(_as_data(ranking, model, gpu, top), indent=1))
    else:
        for line in _report(ranking, model, cluster, batch_tokens, top):
            click.echo(line)
    if ranking.best is None:
        raise SystemExit(1)


def _cluster(gpu: str, gpus_per_node: int, intra: str | None, inter: str) -> "Cluster":
    from labkit.cost.cluster import Cluster
    from labkit.cost.hardware import device, link

    if gpus_per_node < 1:
        raise ValueError(f"--gpus-per-node is {gpus_per_node}, the least is 1")
    kind = device(gpu)
    return Cluster(
        device=kind,
        devices_per_node=gpus_per_node,
        intra=link(intra or kind.link),
        inter=link(inter),
    )


def _whole(text: str, option: str) -> int:
    from labkit.cost.units import parse_units

    number = parse_units(text)
    if number != int(number):
        raise ValueError(f"{option} {text} is not a whole number of tokens")
    return int(number)


def _report(
    ranking: "Ranking", model: str, cluster: "Cluster", batch_tokens: float, top: int
) -> list[str]:
    job, device = ranking.job, cluster.device
    nodes = f"nodes of {cluster.devices_per_node} on {cluster.intra.name}, {cluster.inter.name}"
    tokens = job.batch_size * job.seq_len
    left = batch_tokens - tokens
    over = f"; {left:,.0f} of {batch_tokens:,.0f} are left out, no whole sequence" if left else ""
    usable, whole = ranking.budget_bytes / 1e9, device.memory_bytes / 1e9
    lines = [
        f"{model} on {ranking.num_devices:,} {device.name}, {nodes} between them",
        f"a step: {job.batch_size:,} sequences of {job.seq_len:,} = {tokens:,} tokens{over}",
        f"memory: a layout may fill {usable:.1f} of {whole:.1f} GB; layers are the course's own",
        "",
    ]
    if ranking.best is None:
        lines += _misses(ranking, top)
    else:
        lines += [_predicted(cluster), *_table(ranking, top), ""]
    return [*lines, *_counts(ranking)]


def _predicted(cluster: "Cluster") -> str:
    from labkit.cost.efficiency import efficiency

    name, law = cluster.device.name, efficiency(cluster.device)
    how = f"fitted on {law.fitted_on}" if law.fitted_on else f"for {name} a guess from others"
    return f"predicted, the fastest first (efficiency {how}):"


def _table(ranking: "Ranking", top: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("", *COLUMNS, "GB a rank", "step s", "MFU", "tokens/s")]
    for place, each in enumerate(ranking.fitting[:top], 1):
        assert each.step is not None, "what fits was priced"
        times = (f"{each.step.total_s:.3f}", f"{100 * each.step.mfu:.1f} %")
        speed = f"{ranking.tokens_per_s(each):,.0f}"
        rows.append((str(place), *_choices(each), _gb(each.needed_bytes), *times, speed))
    return _aligned(rows)


def _misses(ranking: "Ranking", top: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("", *COLUMNS, "GB needed", "GB too much", "largest part, GB")]
    for place, each in enumerate(ranking.too_large[:top], 1):
        missing = _gb(each.needed_bytes - ranking.budget_bytes)
        most = f"{each.largest_part} {_gb(each.parts_bytes[each.largest_part])}"
        rows.append((str(place), *_choices(each), _gb(each.needed_bytes), missing, most))
    return [f"nothing fits. The nearest of {ranking.num_layouts:,} layouts:", *_aligned(rows), ""]


def _choices(candidate: "Candidate") -> tuple[str, ...]:
    each = candidate.layout
    sizes = (each.dp, each.pp, each.tp, each.cp, each.ep, each.zero)
    inner = (each.micro_batch_size, each.num_micro_batches, each.chunks)
    split = "yes" if each.sequence_parallel else "no"
    return (*map(str, sizes), each.recompute, split, *map(str, inner))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def _counts(ranking: "Ranking") -> list[str]:
    devices, large = ranking.num_devices, ranking.num_too_large
    fit = f"{ranking.num_fitting:,} fit, {large:,} are too large"
    lines = [f"{ranking.num_layouts:,} layouts: {fit}"]
    if needless := len(ranking.unpriced):
        lines.append(f"{needless:>9,}  fit, but recompute or shard more than they need: not priced")
    lines += [f"{n:>9,}  too large, most of it {part}" for part, n in ranking.by_largest_part()]
    lines.append(f"{len(ranking.refused):,} ways to split {devices:,} devices do not divide, as")
    lines += [f"{n:>9,}  {example.split(':')[0]}" for example, n in ranking.by_refusal()[:5]]
    hint = _hint(ranking)
    return lines + ([hint] if hint else [])


def _hint(ranking: "Ranking") -> str:
    """A batch near by that divides over more replicas, where there is one."""
    from math import gcd

    batch, devices = ranking.job.batch_size, ranking.num_devices
    most = max(d for d in range(1, min(batch, devices) + 1) if devices % d == 0)
    if gcd(batch, devices) == most:
        return ""
    near = max(1, round(batch / most)) * most
    return (
        f"{batch:,} sequences divide over at most {gcd(batch, devices):,} of {devices:,} devices; "
        f"{near:,} sequences (--batch-tokens {near * ranking.job.seq_len}) over {most:,}"
    )


def _as_data(ranking: "Ranking", model: str, gpu: str, top: int) -> dict[str, Any]:
    def row(candidate: "Candidate") -> dict[str, Any]:
        data: dict[str, Any] = {"layout": asdict(candidate.layout), "reason": candidate.reason}
        data |= {"needed_bytes": candidate.needed_bytes, "parts_bytes": candidate.parts_bytes}
        if candidate.step is not None:
            total_s = {"total_s": candidate.step.total_s}
            data["predicted_step"] = asdict(candidate.step) | total_s
            data["predicted_tokens_per_s"] = ranking.tokens_per_s(candidate)
        return data

    return {
        "model": model,
        "num_devices": ranking.num_devices,
        "device": gpu,
        "seq_len": ranking.job.seq_len,
        "batch_size": ranking.job.batch_size,
        "budget_bytes": ranking.budget_bytes,
        "num_layouts": ranking.num_layouts,
        "num_fitting": ranking.num_fitting,
        "num_too_large": ranking.num_too_large,
        "fastest": [row(each) for each in ranking.fitting[:top]],
        "nearest_misses": [row(each) for each in ranking.too_large[:top]],
        "largest_part_of_what_does_not_fit": dict(ranking.by_largest_part()),
        "does_not_divide": dict(ranking.by_refusal()),
    }


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"
