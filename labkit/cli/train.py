"""python -m labkit train: train a model on real text, resume a run, or score a model."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labkit.model.corpus import Corpus
    from labkit.train.trainer import TrainSettings

SAVE_EVERY = 100  # steps; a save of `mini` takes a tenth of a second


@click.command()
@click.option("--model", default="mini", show_default=True, help="A preset: nano, mini, mini-mha.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the run; default runs/MODEL."
)
@click.option("--corpus", help="shakespeare, pydoc or a folder of .txt files.")
@click.option("--resume", is_flag=True, help="Go on where the run in --out stopped.")
@click.option("--evaluate", metavar="MODEL", help="Only score a shipped model or a folder.")
@click.option("--steps", type=int, help="Optimizer steps; default: the preset's recipe.")
@click.option("--batch-size", type=int, help="Sequences a step.")
@click.option("--num-micro-batches", type=int, help="Parts that a batch is passed in.")
@click.option("--seq-len", type=int, help="Tokens a sequence.")
@click.option("--lr", type=float, help="Highest learning rate.")
@click.option("--seed", type=int, help="Of weights and data order.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]))
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]))
def train(
    model: str, out: Path | None, corpus: str | None, resume: bool, evaluate: str | None, **given
):
    """Train a model on real text. Ctrl-C saves; --resume goes on."""
    from labkit.model.corpus import load_corpus

    text = load_corpus(corpus)
    if evaluate is not None:
        from labkit.model.checkpoint import load_checkpoint

        _print_scores(_scores(load_checkpoint(evaluate), text))
        return
    settings = _settings(model, given)
    run = _Run(model, settings, text, out or Path("runs") / model, resume)
    if run.go():
        run.finish(_command())


def _settings(model: str, given: dict[str, Any]) -> "TrainSettings":
    from dataclasses import replace

    from labkit.train.recipes import RECIPES

    if model not in RECIPES:
        raise ValueError(f"no recipe for {model!r}; there are {', '.join(sorted(RECIPES))}")
    return replace(RECIPES[model], **{k: v for k, v in given.items() if v is not None})


def _command() -> str:
    return shlex.join(["python", "-m", "labkit", *(a for a in sys.argv[1:] if a != "--resume")])


def _scores(model, text: "Corpus") -> dict[str, float]:
    from labkit.train.evaluate import bits_per_byte, xz_bits_per_byte

    return {
        "this model": bits_per_byte(model, text.held_out),
        "`xz -9`": xz_bits_per_byte(text.held_out),
    }


def _print_scores(scores: dict[str, float]) -> None:
    for what, score in scores.items():
        click.echo(f"held-out bits a byte, {what}: {score:.3f}")


class _Run:
    """One training run in a folder."""

    def __init__(
        self, name: str, settings: "TrainSettings", text: "Corpus", out: Path, resume: bool
    ):
        import torch

        from labkit.launch import device
        from labkit.model.config import PRESETS
        from labkit.model.transformer import Transformer, initialise
        from labkit.train.data import Batches, token_stream
        from labkit.train.loss_scale import LossScaler
        from labkit.train.resume import STATE, load_state
        from labkit.train.trainer import make_optimizer

        self.name, self.settings, self.text, self.out = name, settings, text, out
        self.batches = Batches(
            stream=token_stream(text.train),
            batch_size=settings.batch_size,
            seq_len=settings.seq_len,
            seed=settings.seed,
        )
        self.model = Transformer(PRESETS[name])
        initialise(self.model, torch.Generator().manual_seed(settings.seed))
        self.model.to(device())
        self.optimizer = make_optimizer(self.model, settings)
        self.scaler = LossScaler() if settings.precision == "fp16" else None
        self.losses: list[float] = []
        if resume:
            self.losses = load_state(out, self.model, self.optimizer, settings, self.scaler)
        elif (out / STATE).exists():
            raise ValueError(f"{out} holds a run; add --resume to go on, or give another --out")
        out.mkdir(parents=True, exist_ok=True)

    def go(self) -> bool:
        """Train to the end; False if the user interrupted. Either way the state is on the disk."""
        from tqdm import tqdm

        from labkit.train.trainer import train as steps_of

        start, total = len(self.losses), self.settings.steps
        run = (self.model, self.optimizer, self.batches, self.settings, start, self.scaler)
        bar = tqdm(total=total, initial=start, desc=self.name, unit="step")
        try:
            for result in steps_of(*run):
                self.losses.append(result.loss)
                bar.set_postfix(loss=f"{result.loss:.3f}", lr=f"{result.lr:.1e}", refresh=False)
                bar.update()
                if len(self.losses) % SAVE_EVERY == 0:
                    self.save()
        except KeyboardInterrupt:
            click.echo(f"\nstopped after step {len(self.losses)}; --resume goes on", err=True)
            return False
        finally:
            bar.close()
            self.save()
        return True

    def save(self) -> None:
        from labkit.train.resume import save_state

        if self.losses:
            state = (self.model, self.optimizer, self.settings, self.losses, self.scaler)
            save_state(self.out, *state)

    def finish(self, command: str) -> None:
        """Write the bf16 checkpoint and its card; the scores are those of what was written."""
        from labkit.model.checkpoint import load_checkpoint, save_checkpoint
        from labkit.model.files import write_atomically
        from labkit.train.card import Trained, model_card

        save_checkpoint(self.out, self.model)
        written = load_checkpoint(self.out)
        scores = _scores(written, self.text)
        card = model_card(
            Trained(
                name=self.name,
                config=written.config,
                num_parameters=sum(p.numel() for p in written.parameters()),
                settings=self.settings,
                corpus=self.text,
                losses=self.losses,
                scores=scores,
                command=command,
            )
        )
        write_atomically(self.out / "README.md", card)
        _print_scores(scores)
        click.echo(f"wrote {self.out}/model.safetensors, config.json and README.md")
