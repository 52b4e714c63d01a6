"""python -m labkit simulate: one step of a large world, run as one rank of it, without a GPU."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.cost.cluster import Cluster
    from labkit.simulate.run import Job


@click.command()
@click.option("--model", required=True, help="A preset, such as llama3-8b or llama3-70b.")
@click.option("--dp", default=1, show_default=True, help="Replicas that share the batch.")
@click.option("--pp", default=1, show_default=True, help="Stages of the pipeline.")
@click.option("--tp", default=1, show_default=True, help="Ranks that share each matrix.")
@click.option("--zero", default=0, show_default=True, help="Stage of ZeRO along dp, 0 to 3.")
@click.option("--world-size", type=int, help="Refuse a layout that has another number of ranks.")
@click.option("--sequence", default=4096, show_default=True, help="Tokens a sequence.")
@click.option("--micro-batch-size", default=1, show_default=True, help="Sequences of one replica.")
@click.option("--num-micro-batches", type=int, help="Of one replica in a step; default pp.")
@click.option("--batch-size", type=int, help="Sequences in a step, instead of the number before.")
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
)
@click.option("--sequence-parallel", is_flag=True, help="Norms hold 1/tp of the tokens.")
@click.option("--schedule", default="1f1b", show_default=True, help="Of the pipeline.")
@click.option("--chunks", default=1, show_default=True, help="Stages a rank holds, interleaved.")
@click.option("--bucket-mib", default=4, show_default=True, help="Bucket of ZeRO 0 to 2.")
@click.option("--precision", type=click.Choice(["mixed", "fp32"]), default="mixed")
@click.option("--gpu", default="h100", show_default=True, help="Device, for memory and time.")
@click.option("--gpus-per-node", default=8, show_default=True)
@click.option("--network", default="infiniband-ndr", show_default=True, help="Between nodes.")
def simulate(gpu: str, gpus_per_node: int, network: str, **given: Any) -> None:
    """Run labkit's own strategies as one rank of a world that is not there.

    Prints bytes held, FLOPs and bytes sent, which are exact, and a step time, which is virtual.
    """
    from tqdm import tqdm

    from labkit.simulate.replay import fabric_of, replay_runs
    from labkit.simulate.report import number_format, report, why_it_does_not_fit
    from labkit.simulate.run import simulate as run_all

    job, cluster = _job(**given), _cluster(gpu, gpus_per_node, network)
    fabric = fabric_of(cluster, number_format(job))
    with tqdm(bar_format="{l_bar}{bar}| {elapsed} {desc}") as bar:

        def told(what: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(what)

        runs = run_all(job, told)
    click.echo(report(job, runs, replay_runs(runs, fabric), cluster))
    if why := why_it_does_not_fit(runs, cluster):
        raise ValueError(why)


def _job(
    model: str,
    sequence: int,
    micro_batch_size: int,
    num_micro_batches: int | None,
    batch_size: int | None,
    precision: str,
    world_size: int | None,
    bucket_mib: int,
    **layout: Any,
) -> "Job":
    from labkit.compose.plan import Plan
    from labkit.simulate.run import Job, model_config

    config = model_config(model)
    if num_micro_batches is None:
        num_micro_batches = layout["pp"]
        if batch_size is not None:
            num_micro_batches = batch_size // (layout["dp"] * micro_batch_size) or 1
    plan = Plan(num_micro_batches=num_micro_batches, **layout)
    if world_size not in (None, plan.world_size):
        raise ValueError(
            f"dp {plan.dp} x pp {plan.pp} x tp {plan.tp} = {plan.world_size} ranks, "
            f"--world-size is {world_size}"
        )
    if batch_size not in (None, whole := plan.dp * num_micro_batches * micro_batch_size):
        raise ValueError(
            f"a batch of {batch_size} is not {plan.dp} replicas x {num_micro_batches} "
            f"micro-batches x {micro_batch_size}: the nearest is {whole}"
        )
    return Job(
        config=config,
        plan=plan,
        micro_batch_size=micro_batch_size,
        seq_len=sequence,
        precision=precision,
        bucket_bytes=bucket_mib * 2**20,
    )


def _cluster(gpu: str, gpus_per_node: int, network: str) -> "Cluster":
    from labkit.cost.cluster import Cluster
    from labkit.cost.hardware import device, link

    chosen = device(gpu)
    if gpus_per_node < 1:
        raise ValueError(f"{gpus_per_node} GPUs a node, the least is 1")
    return Cluster(
        device=chosen,
        devices_per_node=gpus_per_node,
        intra=link(chosen.link),
        inter=link(network),
    )
