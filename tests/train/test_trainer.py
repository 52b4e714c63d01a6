"""The loop: the schedule by hand, a step against torch's own parts, accumulation, real text.

Recomputation changes no bit, so it is compared with torch.equal; its bytes with labkit.cost.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from labkit.cost.activations import BlockShape, block_activation_bytes
from labkit.measure.memory import SavedActivations
from labkit.model.config import PRESETS
from labkit.model.corpus import load_corpus
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches, token_stream
from labkit.train.trainer import TrainSettings, learning_rate, make_optimizer, train, train_step

SETTINGS = TrainSettings(steps=100, warmup_steps=10, lr=1.0, precision="fp32", batch_size=4)


def nano(dtype=torch.float64, preset="nano"):
    model = Transformer(PRESETS[preset])
    initialise(model, torch.Generator().manual_seed(0))
    return model.to(dtype)


def batch_of(rows=4, T=8):
    tokens = torch.randint(0, 259, (rows, T + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize(
    ("step", "lr"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (55, 0.55), (100, 0.1), (200, 0.1)],
)
def test_warm_up_and_cosine(step, lr):
    assert learning_rate(step, SETTINGS) == pytest.approx(lr, rel=1e-12)


def test_a_step_is_torchs_clip_and_adamw():
    settings = replace(SETTINGS, lr=1e-3, clip_norm=0.05)
    model, twin = nano(), nano()
    x, y = batch_of()
    result = train_step(model, make_optimizer(model, settings), (x, y), 0, settings)

    cross_entropy(twin(x).flatten(0, 1), y.flatten()).backward()
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
    matrices = [p for p in twin.parameters() if p.dim() == 2]
    others = [p for p in twin.parameters() if p.dim() == 1]
    for group, decay in ((matrices, 0.1), (others, 0.0)):
        torch.optim.AdamW(group, lr=1e-4, betas=(0.9, 0.95), weight_decay=decay).step()
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-12)
    assert result.grad_norm > 0.05  # so clipping was at work
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_changes_nothing(parts):
    """20 steps, 1e-9 relative in float64. A mean of means would pass here, not in the next test."""
    losses = {}
    for n in (1, parts):
        settings = replace(SETTINGS, steps=20, lr=1e-3, num_micro_batches=n)
        model = nano()
        optimizer = make_optimizer(model, settings)
        losses[n] = [train_step(model, optimizer, batch_of(), s, settings).loss for s in range(20)]
    assert losses[parts] == pytest.approx(losses[1], rel=1e-9)


def test_every_scored_token_weighs_the_same():
    """Losses (1, 1, 1) and (5) are 2.0 a token; the mean of the two means would be 3.0."""
    model, (x, y) = nano(), batch_of(rows=2, T=3)
    y = y.clone()
    y[1, 1:] = -100
    halves, whole = (
        train_step(
            model,
            torch.optim.SGD(model.parameters(), lr=0.0),
            (x, y),
            0,
            replace(SETTINGS, lr=0.0, num_micro_batches=n),
        )
        for n in (2, 1)
    )
    oracle = cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    assert whole.loss == pytest.approx(oracle, rel=1e-12)
    assert halves.loss == pytest.approx(oracle, rel=1e-12)
    assert halves.grad_norm == pytest.approx(whole.grad_norm, rel=1e-9)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_moves_the_balancing_bias_by_what_it_counted(recompute):
    """Micro-batches and recomputation do not change the counts; at rate 0 the bias stays."""
    twin, batch = nano(preset="nano-moe"), batch_of()
    twin(batch[0]).sum().backward()
    for rate in (0.01, 0.0):
        settings = replace(SETTINGS, num_micro_batches=2, recompute=recompute, balancing_rate=rate)
        model = nano(preset="nano-moe")
        train_step(model, make_optimizer(model, settings), batch, 0, settings)
        for layer, other in zip(model.layers, twin.layers, strict=True):
            assert int(other.mlp.counts.sum()) == 4 * 8 * 2  # rows, tokens, choices
            mean = other.mlp.counts.double().mean()
            expected = rate * (mean - other.mlp.counts).sign()
            assert torch.equal(layer.mlp.bias, expected.to(layer.mlp.bias.dtype))
            assert layer.mlp.bias.any() == bool(rate)
            assert not layer.mlp.counts.any()


def test_bf16_products_over_fp32_weights():
    settings = replace(SETTINGS, steps=3, lr=1e-3, precision="bf16")
    model = nano(torch.float32)
    result = train_step(model, make_optimizer(model, settings), batch_of(), 0, settings)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    exact = cross_entropy(nano()(batch_of()[0]).flatten(0, 1), batch_of()[1].flatten()).item()
    assert result.loss == pytest.approx(exact, rel=2**-7)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_keeps_every_bit_of_a_step_and_fewer_bytes(recompute, precision):
    weights, kept = {}, {}
    for how in ("none", recompute):
        settings = replace(SETTINGS, steps=2, lr=1e-3, precision=precision, recompute=how)
        settings = replace(settings, num_micro_batches=2)
        model = nano(torch.float32)
        optimizer = make_optimizer(model, settings)
        with SavedActivations(model) as saved:
            for step in range(2):
                train_step(model, optimizer, batch_of(), step, settings)
        assert saved.live_bytes == 0
        weights[how], kept[how] = list(model.parameters()), saved.bytes
    assert all(map(torch.equal, weights["none"], weights[recompute]))
    config = PRESETS["nano"]
    shape = BlockShape(
        batch_size=2,
        seq_len=8,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    a_layer = {
        how: block_activation_bytes(shape, autocast=precision == "bf16", recompute=how)
        for how in ("none", recompute)
    }
    saving = 4 * config.num_layers * (a_layer["none"] - a_layer[recompute])  # 2 steps of 2 parts
    assert kept["none"] - kept[recompute] == saving > 0


def test_real_text_is_learned():
    """120 small steps on Shakespeare beat the best guess that ignores context."""
    settings = TrainSettings(steps=120, batch_size=4, seq_len=64, lr=8e-3, warmup_steps=5)
    model = nano(torch.float32)
    stream = token_stream(load_corpus("shakespeare").train)
    counts = torch.bincount(stream).double()
    entropy = -(counts / counts.sum() * (counts / counts.sum()).log().nan_to_num(0, 0, 0)).sum()
    batches = Batches(stream=stream, batch_size=4, seq_len=64, seed=0)
    steps = list(train(model, make_optimizer(model, settings), batches, settings))
    assert [s.step for s in steps] == list(range(120))
    assert sum(s.loss for s in steps[-10:]) / 10 < entropy - 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(steps=0), "steps is 0"),
        (dict(num_micro_batches=3), "batch_size 4 does not divide into 3 micro-batches"),
        (dict(precision="fp8"), "precision 'fp8'"),
        (dict(recompute="some"), "recompute 'some'"),
        (dict(balancing_rate=-0.01), "balancing_rate is -0.01"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **change)
