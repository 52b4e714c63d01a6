"""A training run of one process in a folder: start or resume, save, end."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from labkit.compose.manifest import latest, read_manifest
from labkit.compose.parallel_files import check_model
from labkit.compose.shard_files import load_shards
from labkit.model.config import PRESETS
from labkit.model.corpus import Corpus
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches, token_stream
from labkit.train.loss_scale import LossScaler
from labkit.train.resume import fill, load_state, save_state
from labkit.train.run_files import has_run, last_saved, read_run
from labkit.train.trainer import StepResult, TrainSettings, make_optimizer
from labkit.train.trainer import train as steps_of


class Run:
    """Model, optimizer and losses of a run, fresh or as its folder has them.

    Args:
        name: a preset of the model.
        out: folder of the run.
        resume: go on where the run in `out` stopped, on one process or on many.

    Raises:
        FileNotFoundError, ValueError: there is nothing to resume, or something that is not to be
            resumed; what was saved is damaged, or of other settings or another model.
    """

    def __init__(
        self,
        name: str,
        settings: TrainSettings,
        text: Corpus,
        out: Path,
        *,
        resume: bool,
        save_every: int,
        device: torch.device,
    ) -> None:
        if save_every < 1:
            raise ValueError(f"save_every is {save_every}; it must be at least 1")
        self.name, self.settings, self.text, self.out = name, settings, text, out
        self.save_every = save_every
        self.batches = Batches(
            stream=token_stream(text.train),
            batch_size=settings.batch_size,
            seq_len=settings.seq_len,
            seed=settings.seed,
        )
        self.model = Transformer(PRESETS[name])
        initialise(self.model, torch.Generator().manual_seed(settings.seed))
        self.model.to(device)
        self.optimizer = make_optimizer(self.model, settings)
        self.scaler = LossScaler() if settings.precision == "fp16" else None
        self.losses: list[float] = []
        if resume:
            self.losses = self._resumed()
        elif has_run(out):
            raise ValueError(f"{out} holds a run; add --resume to go on, or give another --out")
        out.mkdir(parents=True, exist_ok=True)

    def go(self, told: Callable[[StepResult], object], stop_wanted: Callable[[], bool]) -> bool:
        """Train to the end, or until somebody wants it to stop, between two steps.

        Args:
            told: of each step.
            stop_wanted: asked before each step.

        Returns:
            Whether it came to the end. Either way the state is on the disk.
        """
        run = (self.model, self.optimizer, self.batches, self.settings, len(self.losses))
        steps = steps_of(*run, self.scaler)
        while len(self.losses) < self.settings.steps and not stop_wanted():
            result = next(steps)
            self.losses.append(result.loss)
            told(result)
            if len(self.losses) % self.save_every == 0:
                self.save()
        self.save()
        return len(self.losses) == self.settings.steps

    def save(self) -> None:
        """Write the state, if a step has been done."""
        if self.losses:
            state = (self.model, self.optimizer, self.settings, self.losses, self.scaler)
            save_state(self.out, *state)

    def _resumed(self) -> list[float]:
        step, in_shards = last_saved(self.out)
        if not in_shards:
            return load_state(self.out, self.model, self.optimizer, self.settings, self.scaler)
        folder = latest(self.out)
        check_model(read_manifest(folder), asdict(self.model.config))
        losses = read_run(self.out, self.settings, step)
        fill(load_shards(folder), self.model, self.optimizer)
        return losses
