"""python -m labkit train: train a model on real text, on one process or many, or score a model."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.cli.options import layout_options

if TYPE_CHECKING:
    from labkit.model.corpus import Corpus
    from labkit.train.trainer import TrainSettings

SAVE_EVERY = 100  # steps; a save of `mini` takes a tenth of a second


@click.command()
@click.option("--model", default="mini", show_default=True, help="Such as nano, mini or mini-moe.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the run; default runs/MODEL."
)
@click.option("--corpus", help="shakespeare, pydoc or a folder of .txt files.")
@click.option("--resume", is_flag=True, help="Go on where the run in --out stopped.")
@click.option("--evaluate", metavar="MODEL", help="Only score a shipped model or a folder.")
@click.option("--steps", type=int, help="Optimizer steps; default: the preset's recipe.")
@click.option("--save-every", type=int, default=SAVE_EVERY, show_default=True, help="In steps.")
@click.option("--batch-size", type=int, help="Sequences a step, over all ranks.")
@click.option(
    "--num-micro-batches",
    type=int,
    help="Parts that the batch of a replica is passed in; default 1, in a pipeline --pp.",
)
@click.option("--seq-len", type=int, help="Tokens a sequence.")
@click.option("--lr", type=float, help="Highest learning rate.")
@click.option("--seed", type=int, help="Of weights and data order.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]))
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]))
@layout_options
def train(
    model: str,
    out: Path | None,
    corpus: str | None,
    resume: bool,
    evaluate: str | None,
    save_every: int,
    across: str | None,
    **given: Any,
):
    """Train a model on real text. Ctrl-C saves; --resume goes on, under the same layout or another.

    With --dp, --pp, --tp and so on it trains on as many ranks: processes of its own, or those that
    torchrun has started.
    """
    from labkit.cli import train_ranks
    from labkit.cli.options import plan_of
    from labkit.model.corpus import load_corpus

    text = load_corpus(corpus)
    if evaluate is not None:
        from labkit.model.checkpoint import load_checkpoint
        from labkit.train.finish import score

        print_scores(score(load_checkpoint(evaluate), text))
        return
    plan = plan_of(given, across)  # takes the layout's options out
    settings = _settings(model, given)
    out = out or Path("runs") / model
    if plan is None:
        _one_process(model, settings, text, out, resume, save_every)
        return
    train_ranks.go(
        dict(
            name=model,
            settings=settings,
            plan=plan,
            text=text,
            out=out.absolute(),
            save_every=save_every,
            resume=resume,
            across=across,
        ),
        command(),
    )


def print_scores(scores: dict[str, float]) -> None:
    """One line a score."""
    for what, score in scores.items():
        click.echo(f"held-out bits a byte, {what}: {score:.3f}")


def command() -> str:
    """What the user typed, without --resume: it goes on the card."""
    return shlex.join(["python", "-m", "labkit", *(a for a in sys.argv[1:] if a != "--resume")])


def say_where(out: Path) -> None:
    """The last line of a run."""
    click.echo(f"wrote {out}/model.safetensors, config.json and README.md")


def _settings(model: str, given: dict[str, Any]) -> "TrainSettings":
    from dataclasses import replace

    from labkit.train.recipes import RECIPES

    if model not in RECIPES:
        raise ValueError(f"no recipe for {model!r}; there are {', '.join(sorted(RECIPES))}")
    return replace(RECIPES[model], **{k: v for k, v in given.items() if v is not None})


def _one_process(
    model: str,
    settings: "TrainSettings",
    text: "Corpus",
    out: Path,
    resume: bool,
    save_every: int,
) -> None:
    from tqdm import tqdm

    from labkit.launch import device
    from labkit.launch.watch import asked_to_stop
    from labkit.train.finish import finish_one_process
    from labkit.train.one_process import Run

    run = Run(model, settings, text, out, resume=resume, save_every=save_every, device=device())
    start = len(run.losses)
    about = dict(total=settings.steps, initial=start, desc=model, unit="step")
    with asked_to_stop() as asked, tqdm(**about) as bar:

        def told(result: Any) -> None:
            bar.set_postfix(loss=f"{result.loss:.3f}", lr=f"{result.lr:.1e}", refresh=False)
            bar.update()

        complete = run.go(told, asked)
    if not complete:
        click.echo(f"\nstopped after step {len(run.losses)}; --resume goes on", err=True)
        return
    scores = finish_one_process(out, model, run.model, settings, text, run.losses, command())
    print_scores(scores)
    say_where(out)
