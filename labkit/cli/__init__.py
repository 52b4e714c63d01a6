"""The commands, one file each, imported when called: help is quick."""

import importlib

import click

COMMANDS = {  # name: what the list of commands says
    "bench": "Measure beside a peer in one run and record the result.",
    "doctor": "Say what this machine can run and what is missing.",
    "generate": "Write text with a trained model.",
    "grade": "Judge the answers in a lab notebook, wherever it lies.",
    "plan": "Rank the layouts of a model on many devices by predicted step time.",
    "release": "Build the lab notebooks from their masters.",
    "reshard": "Write a checkpoint anew for another layout, or as one plain model.",
    "simulate": "Run one step of a large world as one rank of it, without a GPU.",
    "train": "Train a model on real text, resume a run, or score a model.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"labkit.cli.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def invoke(self, ctx: click.Context):
        """A caller's mistake is one line and exit code 2, not a traceback."""
        try:
            return super().invoke(ctx)
        except (ValueError, FileNotFoundError) as error:
            raise Mistake(str(error)) from error


class Mistake(click.ClickException):
    """What the caller can put right; code 1 is left to a command's own verdict."""

    exit_code = 2


@click.group(cls=_Commands)
def main() -> None:
    """Train large models in parallel and serve them fast, at the size of this machine."""
