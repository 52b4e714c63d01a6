"""python -m labkit bench: measure beside a peer in one run and record the result."""

import importlib

import click

SUITES = (
    *("launch", "hook", "collectives", "model", "data_parallel"),
    *("zero", "tensor", "narrow", "pipeline", "scaling", "simulate", "two_hosts", "experts"),
    "hybrid",
)


@click.command()
@click.argument("suites", nargs=-1, type=click.Choice(SUITES))
@click.option("--record/--no-record", default=True, help="Write book/results/NAME.json.")
def bench(suites: tuple[str, ...], record: bool) -> None:
    """Measure beside a peer in one run and record the result; all suites if none is named."""
    from labkit.measure.record import record as write

    for name in suites or SUITES:
        click.echo(f"# {name}")
        result = importlib.import_module(f"labkit.bench.{name}").main()
        if record:
            click.echo(f"recorded in book/results/{write(name, result).name}")
