"""A run that was stopped ends with the numbers of one that was not, bit for bit."""

from dataclasses import replace

import pytest
import torch

from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches
from labkit.train.resume import STATE, load_state, save_state
from labkit.train.trainer import TrainSettings, make_optimizer, train

SETTINGS = TrainSettings(steps=6, batch_size=2, seq_len=8, warmup_steps=2)
STREAM = torch.randint(0, 259, (200,), generator=torch.Generator().manual_seed(2))
BATCHES = Batches(stream=STREAM, batch_size=2, seq_len=8, seed=0)


def fresh(seed=0, preset="nano"):
    model = Transformer(PRESETS[preset])
    initialise(model, torch.Generator().manual_seed(seed))
    return model, make_optimizer(model, SETTINGS)


@pytest.mark.parametrize("preset", ["nano", "nano-moe"])
def test_resuming_is_bitwise(preset, tmp_path):
    """A mixture has a bias that is no parameter."""
    settings = replace(SETTINGS, balancing_rate=0.01 if preset == "nano-moe" else 0.0)
    whole, optimizer = fresh(preset=preset)
    losses = [r.loss for r in train(whole, optimizer, BATCHES, settings)]

    first, optimizer = fresh(preset=preset)
    steps = train(first, optimizer, BATCHES, settings)
    done = [next(steps).loss for _ in range(3)]
    save_state(tmp_path, first, optimizer, settings, done)

    second, optimizer = fresh(seed=1, preset=preset)  # its own weights must not matter
    before = load_state(tmp_path, second, optimizer, settings)
    rest = [r.loss for r in train(second, optimizer, BATCHES, settings, start=len(before))]
    assert before + rest == losses
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_other_settings_are_refused(tmp_path):
    model, optimizer = fresh()
    losses = [r.loss for r in train(model, optimizer, BATCHES, replace(SETTINGS, steps=1))]
    save_state(tmp_path, model, optimizer, SETTINGS, losses)
    with pytest.raises(ValueError, match=r"was started with lr=0.002, now it is 0.001"):
        load_state(tmp_path, model, optimizer, replace(SETTINGS, lr=0.001))


def test_nothing_to_resume(tmp_path):
    with pytest.raises(FileNotFoundError, match=STATE):
        load_state(tmp_path, *fresh(), SETTINGS)
