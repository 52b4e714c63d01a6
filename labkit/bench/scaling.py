"""Six small models trained to the end, for a fit that predicts `mini`'s loss before looking.

Every record is the end of a cosine of its own: a point half-way down a longer cosine is worse than
a short run that ended there (arXiv 2203.15556, appendix B). Text, trainer, tokens a step, warm-up
and the held-out works are those of `mini`; the rate is 2e-3 · √(256 / width), which goes through
the recipes of `mini` (width 256) and `nano` (width 64).

A run saves its state every SAVE_EVERY steps under runs/scaling and goes on from there; one that is
finished is not trained again. All eight took 25 minutes of one thread, on a machine
that did other work.
"""

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.cost.architecture import Architecture
from labkit.cost.counting import training_flops
from labkit.cost.scaling_laws import CHINCHILLA_REFIT, Record, fit, leave_one_out
from labkit.model.checkpoint import load_checkpoint, save_checkpoint
from labkit.model.config import PRESETS, ModelConfig
from labkit.model.corpus import Corpus, load_corpus
from labkit.model.files import read_json, write_atomically
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches, token_stream
from labkit.train.evaluate import bits_per_byte
from labkit.train.recipes import RECIPES
from labkit.train.resume import STATE, load_state, save_state
from labkit.train.trainer import TrainSettings, make_optimizer, train

SAVE_EVERY = 50
FOLDER = Path("runs/scaling")
COMMAND = "OMP_NUM_THREADS=1 python -m labkit bench scaling"
TARGET = "mini"
SCORE = "bits_per_byte"
# What a fit is told, as few records do not pin five numbers. Shannon 1951 ("Prediction and entropy
# of printed English") bounds a letter of English by 0.6 and 1.3 bits; 1 is taken.
CHOICES: dict[str, dict[str, float]] = {
    "all free": {},
    "Shannon's floor": {"E": 1.0},
    "exponents of the refit": {"alpha": CHINCHILLA_REFIT.alpha, "beta": CHINCHILLA_REFIT.beta},
}
CARD = Path(__file__).parents[1] / "model" / "pretrained" / TARGET / "README.md"


def _shape(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> ModelConfig:
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=259,
        max_seq_len=512,
    )


SHAPES = {
    "w32": _shape(2, 32, 88, 2, 1),
    "w48": _shape(3, 48, 128, 3, 1),
    "w64": PRESETS["nano"],
    "w96": _shape(4, 96, 256, 6, 2),
    "w128": _shape(5, 128, 352, 4, 2),
    "w160": _shape(6, 160, 448, 5, 1),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One model and the steps of its cosine."""

    name: str
    config: ModelConfig
    settings: TrainSettings

    @property
    def tokens(self) -> int:
        return self.settings.steps * self.settings.batch_size * self.settings.seq_len


def scaling_run(name: str, steps: int) -> Run:
    """A model of SHAPES on `steps` steps: mini's recipe, the rate by width."""
    config, recipe = SHAPES[name], RECIPES[TARGET]
    lr = recipe.lr * math.sqrt(PRESETS[TARGET].hidden_size / config.hidden_size)
    settings = TrainSettings(**asdict(recipe) | {"steps": steps, "lr": lr})
    return Run(name=name, config=config, settings=settings)


# Each model once, then further lengths for those in which text, not size, is what lacks.
RUNS = tuple(
    scaling_run(name, steps)
    for name, steps in (
        *(("w32", 800), ("w64", 200), ("w128", 200), ("w48", 800), ("w96", 400), ("w160", 200)),
        *(("w64", 800), ("w128", 400)),
    )
)


def main() -> dict:
    """Train what is not trained yet, fit, predict `mini`; print and return all of it."""
    torch.set_num_threads(1)
    records = train_all(RUNS, load_corpus("shakespeare"), FOLDER, print)
    return {"command": COMMAND, "corpus": "shakespeare", "records": records} | prediction(records)


def prediction(records: Sequence[dict]) -> dict:
    """A fit with each choice of CHOICES; the one that predicts left-out records best is taken."""
    config, recipe = PRESETS[TARGET], RECIPES[TARGET]
    size = num_non_embedding(config)
    tokens = recipe.steps * recipe.batch_size * recipe.seq_len
    measured = card_score(CARD.read_text(encoding="utf-8"))
    rows = [(row["non_embedding_parameters"], row["tokens"], row[SCORE]) for row in records]
    fits = {name: _tried(rows, known, (size, tokens, measured)) for name, known in CHOICES.items()}
    chosen = min(fits, key=lambda name: fits[name]["mean_left_out_error"])
    found = fits[chosen]
    told = f"predicted {found[SCORE]:.3f}, measured {measured:.3f} bits a byte"
    print(f"{TARGET}, {chosen}: {told}, {found['relative_error']:+.1%}")
    target = {"name": TARGET, "non_embedding_parameters": size, "tokens": tokens, SCORE: measured}
    return {"target": target, "fits": fits, "chosen": chosen}


def _tried(rows: list[Record], known: dict[str, float], target: Record) -> dict:
    law, left_out = fit(rows, **known), leave_one_out(rows, **known)
    predicted = law.loss(*target[:2])
    return {
        "known": known,
        "law": asdict(law),
        "left_out_errors": left_out,
        "mean_left_out_error": sum(map(abs, left_out)) / len(left_out),
        SCORE: predicted,
        "relative_error": predicted / target[2] - 1,
    }


def train_all(
    runs: Sequence[Run], text: Corpus, folder: Path, say: Callable[[str], Any]
) -> list[dict]:
    """The record of every run, in order; those that lie finished in the folder are read."""
    records = []
    for run in runs:
        records.append(record_of(run, text, folder / f"{run.name}-{run.settings.steps}"))
        row = records[-1]
        say(f"{run.name}, {row['tokens']:,} tokens: {row[SCORE]:.4f} bits a byte")
    return records


def record_of(run: Run, text: Corpus, folder: Path) -> dict:
    """Train to the end, from the last save if there is one, and score the bf16 checkpoint.

    Raises:
        ValueError: if the folder holds a record of another shape or other settings.
    """
    kept = folder / "record.json"
    asked = {"model": run.name, "config": asdict(run.config), "settings": asdict(run.settings)}
    if kept.is_file():
        found = read_json(kept)
        if {key: found[key] for key in asked} != asked:
            raise ValueError(f"{kept} is of another shape or other settings; remove the folder")
        return found
    folder.mkdir(parents=True, exist_ok=True)
    losses, seconds = _train(run, text, folder)
    model, sizes = load_checkpoint(folder), Architecture.of(run.config)
    record = asked | {
        "non_embedding_parameters": num_non_embedding(run.config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": run.tokens,
        "training_flops": training_flops(sizes, run.tokens, run.settings.seq_len),
        "train_nats_last_20": sum(losses[-20:]) / len(losses[-20:]),
        SCORE: bits_per_byte(model, text.held_out),
        "seconds": seconds,
    }
    write_atomically(kept, json.dumps(record, indent=1) + "\n")
    return record


def _train(run: Run, text: Corpus, folder: Path) -> tuple[list[float], float]:
    """Losses of all steps, and the seconds of those steps that were made in this call."""
    settings = run.settings
    model = Transformer(run.config)
    initialise(model, torch.Generator().manual_seed(settings.seed))
    optimizer = make_optimizer(model, settings)
    losses: list[float] = []
    if (folder / STATE).is_file():
        losses = load_state(folder, model, optimizer, settings)
    shape = {"batch_size": settings.batch_size, "seq_len": settings.seq_len}
    batches = Batches(stream=token_stream(text.train), seed=settings.seed, **shape)
    began = time.monotonic()
    for result in train(model, optimizer, batches, settings, len(losses)):
        losses.append(result.loss)
        if len(losses) % SAVE_EVERY == 0:
            save_state(folder, model, optimizer, settings, losses)
    save_checkpoint(folder, model)
    return losses, time.monotonic() - began


def num_non_embedding(config: ModelConfig) -> int:
    """Parameters outside of the embedding and the output projection."""
    with torch.device("meta"):
        model = Transformer(config)
    tables = ("embed_tokens", "lm_head")
    return sum(p.numel() for n, p in model.named_parameters() if not n.startswith(tables))


def card_score(card: str) -> float:
    """Held-out bits a byte of a model card."""
    found = re.search(r"Held-out bits a byte, this model \| ([\d.]+)", card)
    if found is None:
        raise ValueError("the card has no line 'Held-out bits a byte, this model'")
    return float(found.group(1))
