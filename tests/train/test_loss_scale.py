"""The loss scale moves as torch's GradScaler does, and no rank decides alone.

Oracles: torch.amp.GradScaler on a CPU; a step without scaling; numbers worked out by hand. A power
of two changes no digit, so results are compared with torch.equal.
"""

from dataclasses import replace

import pytest
import torch

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches
from labkit.train.loss_scale import LossScaler
from labkit.train.resume import load_state, save_state
from labkit.train.trainer import TrainSettings, make_optimizer, train, train_step

SETTINGS = TrainSettings(steps=6, batch_size=2, seq_len=8, warmup_steps=2, precision="fp16")
STREAM = torch.randint(0, 259, (200,), generator=torch.Generator().manual_seed(2))
BATCHES = Batches(stream=STREAM, batch_size=2, seq_len=8, seed=0)
OUTCOMES = [True, False, True, True, True, False, False, True, True, True]  # growth after two


def fresh(settings=SETTINGS):
    model = Transformer(PRESETS["nano"])
    initialise(model, torch.Generator().manual_seed(0))
    return model, make_optimizer(model, settings)


def with_grad(*values):
    parameter = torch.nn.Parameter(torch.zeros(len(values)))
    parameter.grad = torch.tensor(values)
    return parameter


def test_the_scale_goes_where_torchs_goes():
    ours = LossScaler(scale=2.0**10, growth_interval=2)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for finite in OUTCOMES:
        parameter = with_grad(1.0 if finite else float("inf"))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        theirs.scale(torch.ones(()))
        theirs.step(optimizer)
        theirs.update()
        ours.update(ours.unscale([with_grad(1.0 if finite else float("inf"))]))
        assert ours.scale == theirs.get_scale()
    assert ours.num_skipped == 3


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_one_bad_number_among_many_is_seen(bad):
    scaler = LossScaler(scale=8.0)
    good, unused = with_grad(8.0, 16.0), torch.nn.Parameter(torch.zeros(1))
    assert scaler.unscale([good, unused])
    assert good.grad.tolist() == [1.0, 2.0]
    assert not scaler.unscale([good, with_grad(0.0, bad)])


def test_small_gradients_survive_fp16():
    """d(x·1e-8)/dx is 0 in fp16; times 2^16 it is not."""
    for scale, lives in [(1.0, False), (2.0**16, True)]:
        scaler, x = LossScaler(scale=scale), torch.ones((), requires_grad=True)
        scaler.scaled((x.half() * 3.0).float() * 1e-8).backward()
        assert scaler.unscale([x])
        assert (x.grad.item() == pytest.approx(3e-8, rel=2**-9)) is lives


def test_scaling_changes_no_bit_of_a_step_in_fp32():
    settings = replace(SETTINGS, precision="fp32")
    weights = []
    for scaler in (None, LossScaler(scale=2.0**10)):
        model, optimizer = fresh(settings)
        result = train_step(model, optimizer, BATCHES.batch(0), 0, settings, scaler)
        weights.append(list(model.parameters()))
        assert not result.skipped
    assert all(map(torch.equal, *weights))


def test_clipping_sees_the_gradients_without_the_scale():
    """A step in fp16 has the norm of one in fp32 but for rounding, 2^-11 a number."""
    norms = {}
    for precision, scaler in [("fp32", None), ("fp16", LossScaler(scale=2.0**10))]:
        settings = replace(SETTINGS, precision=precision)
        model, optimizer = fresh(settings)
        norms[precision] = train_step(
            model, optimizer, BATCHES.batch(0), 0, settings, scaler
        ).grad_norm
    assert norms["fp16"] == pytest.approx(norms["fp32"], rel=2**-6)


def test_an_overflow_skips_the_step_and_halves_the_scale():
    model, optimizer = fresh()
    before = [p.detach().clone() for p in model.parameters()]
    scaler = LossScaler(scale=2.0**40)
    result = train_step(model, optimizer, BATCHES.batch(0), 0, SETTINGS, scaler)
    assert result.skipped
    assert scaler.scale == 2.0**39
    assert not optimizer.state
    assert all(map(torch.equal, before, model.parameters()))
    while result.skipped:
        result = train_step(model, optimizer, BATCHES.batch(0), 0, SETTINGS, scaler)
    assert not any(map(torch.equal, before[:3], list(model.parameters())[:3]))


def test_fp16_without_a_scaler_is_refused():
    with pytest.raises(ValueError, match="without a scaler: gradients under 6e-8"):
        train_step(*fresh(), BATCHES.batch(0), 0, SETTINGS)


@pytest.mark.parametrize("stop", [1, 4])
def test_resuming_in_fp16_is_bitwise(tmp_path, stop):
    """The first steps are skipped; the run stops while none was taken, and after some were."""

    def new_scaler():
        return LossScaler(scale=2.0**20, growth_interval=1)

    whole, optimizer = fresh()
    scaler = new_scaler()
    results = list(train(whole, optimizer, BATCHES, SETTINGS, scaler=scaler))
    assert results[0].skipped
    assert not all(result.skipped for result in results)

    first, optimizer = fresh()
    half = new_scaler()
    steps = train(first, optimizer, BATCHES, SETTINGS, scaler=half)
    done = [next(steps).loss for _ in range(stop)]
    save_state(tmp_path, first, optimizer, SETTINGS, done, half)

    second, optimizer = fresh()
    again = new_scaler()
    before = load_state(tmp_path, second, optimizer, SETTINGS, again)
    assert again.state() == half.state()
    rest = train(second, optimizer, BATCHES, SETTINGS, start=len(before), scaler=again)
    assert before + [result.loss for result in rest] == [result.loss for result in results]
    assert all(map(torch.equal, whole.parameters(), second.parameters()))
    assert again.state() == scaler.state()


def test_a_scaler_that_the_state_does_not_know_is_refused(tmp_path):
    settings = replace(SETTINGS, precision="fp32", steps=1)
    model, optimizer = fresh(settings)
    losses = [result.loss for result in train(model, optimizer, BATCHES, settings)]
    save_state(tmp_path, model, optimizer, settings, losses)
    with pytest.raises(ValueError, match="trained without a loss scaler; resume it without one"):
        load_state(tmp_path, model, optimizer, settings, LossScaler())


def one_rank_overflows(group, bad_rank):
    scaler = LossScaler(scale=4.0, group=group)
    value = float("inf") if group.rank() == bad_rank else 4.0
    with CommLedger() as ledger:
        finite = scaler.unscale([with_grad(value)] if group.rank() != 1 or bad_rank == 1 else [])
    scaler.update(finite)
    return finite, scaler.scale, ledger.bytes_sent()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_overflow_on_one_rank_skips_on_all(world_size):
    for bad_rank in range(world_size):
        for finite, scale, _ in run_ranks(one_rank_overflows, world_size, bad_rank):
            assert (finite, scale) == (False, 2.0)
    for finite, scale, num_bytes in run_ranks(one_rank_overflows, world_size, None):
        assert (finite, scale) == (True, 4.0)
        assert num_bytes == 2 * (world_size - 1) / world_size * 4


def test_settings_that_are_not_positive():
    with pytest.raises(ValueError, match="scale 0 and growth_interval 2000"):
        LossScaler(scale=0)
    with pytest.raises(ValueError, match=r"scale 65536.0 and growth_interval 0"):
        LossScaler(growth_interval=0)
