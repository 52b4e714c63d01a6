"""The end of a run: one bf16 checkpoint, its scores and its card.

The scores are those of what was written, read back.
"""

from pathlib import Path

from labkit.compose.manifest import step_folder
from labkit.compose.reshard import export
from labkit.model.checkpoint import load_checkpoint, save_checkpoint
from labkit.model.corpus import Corpus
from labkit.model.files import write_atomically
from labkit.model.transformer import Transformer
from labkit.train.card import Trained, model_card
from labkit.train.evaluate import bits_per_byte, xz_bits_per_byte
from labkit.train.parallel_run import Job
from labkit.train.trainer import TrainSettings


def score(model: Transformer, text: Corpus) -> dict[str, float]:
    """Bits a byte on the held-out works, of a model and of a classical compressor."""
    return {
        "this model": bits_per_byte(model, text.held_out),
        "`xz -9`": xz_bits_per_byte(text.held_out),
    }


def finish_one_process(
    out: Path,
    name: str,
    model: Transformer,
    settings: TrainSettings,
    text: Corpus,
    losses: list[float],
    command: str,
) -> dict[str, float]:
    """Write the checkpoint and card of a run of one process; returns the scores."""
    save_checkpoint(out, model)
    return _card(out, name, settings, text, losses, command)


def finish_ranks(job: Job, losses: list[float], command: str) -> dict[str, float]:
    """Write the checkpoint and card of a run of many ranks, from its last shards, in one process.

    Raises:
        FileNotFoundError, ValueError, OSError: if shards are damaged or the disk is full.
    """
    export(step_folder(job.out, len(losses)), job.out)
    plan = job.plan
    layout = ", ".join(
        f"{axis}={size}"
        for axis in ("dp", "pp", "cp", "ep", "tp")
        if (size := getattr(plan, axis)) > 1
    )
    told = f"{plan.world_size} ranks: {layout or 'one of each'}, ZeRO {plan.zero}, {plan.schedule}"
    return _card(job.out, job.name, job.settings, job.text, losses, command, layout=told)


def _card(
    out: Path,
    name: str,
    settings: TrainSettings,
    text: Corpus,
    losses: list[float],
    command: str,
    layout: str = "one process",
) -> dict[str, float]:
    written = load_checkpoint(out)
    scores = score(written, text)
    card = model_card(
        Trained(
            name=name,
            config=written.config,
            num_parameters=sum(p.numel() for p in written.parameters()),
            settings=settings,
            corpus=text,
            losses=losses,
            scores=scores,
            command=command,
            layout=layout,
        )
    )
    write_atomically(out / "README.md", card)
    return scores
