"""The meter counts every storage once, in its category, at the two moments that it names.

Oracle: sums by hand over a small MLP without biases; real tensors, no world.
"""

import pytest
import torch
from torch import nn

from labkit.parallel.recompute import recompute
from labkit.simulate.meter import Meter

ROWS, WIDTH, HIDDEN = 8, 16, 64
WEIGHTS = 4 * 2 * WIDTH * HIDDEN  # bytes


def model():
    return nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, WIDTH, bias=False)
    )


def metered(run, rows=ROWS):
    """run(module, x) between two AdamW steps."""
    meter = Meter()
    with meter:
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)
        meter.watch(module, optimizer)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        x = torch.ones(rows, WIDTH)
    with meter.step():
        run(module, x)
        optimizer.step()
        optimizer.zero_grad()
    return meter


def plain(module, x):
    module(x).sum().backward()


def again(module, x):
    recompute(module, x.requires_grad_()).sum().backward()


def test_states_are_those_of_adam_and_the_step_counters():
    held = metered(plain).held().by_category
    assert held["parameters"] == held["gradients"] == WEIGHTS
    assert held["optimizer"] == 2 * WEIGHTS + 2 * 4
    assert held["activations"] == 4 * ROWS * WIDTH  # the input, which is still there


def test_what_autograd_keeps():
    """The input of each product; the ReLU's result is the second one's."""
    assert metered(plain).most_kept_bytes == 4 * ROWS * (WIDTH + HIDDEN)


def test_what_is_run_again_is_an_activation_but_was_not_kept():
    rows = 1000  # more than the weights, so that the peak is in backward
    meter = metered(again, rows)
    assert meter.most_kept_bytes == 4 * rows * WIDTH
    assert meter.peak().phase == "backward"
    assert meter.peak().by_category["activations"] >= 4 * rows * (WIDTH + HIDDEN)


def test_the_peak_is_of_one_moment_and_more_than_the_end_of_backward():
    meter = metered(plain)
    assert meter.peak().phase == "backward"
    assert meter.held().phase == "backward"
    assert meter.peak().total_bytes > meter.held().total_bytes
    assert meter.peak().state_bytes < meter.held().state_bytes + 4 * ROWS * HIDDEN


def test_a_buffer_counts_while_it_has_memory():
    meter = Meter()
    with meter:
        buffer = torch.empty(1000)
        assert meter.live_bytes == 4000
        buffer.untyped_storage().resize_(0)
        assert meter.live_bytes == 0
        buffer.untyped_storage().resize_(4000)
        view = buffer[10:]
        assert meter.live_bytes == 4000
        del buffer
        assert meter.live_bytes == 4000
        del view
        assert meter.live_bytes == 0


def test_resize_is_torchs_own_again_afterwards():
    before = torch.UntypedStorage.resize_
    with pytest.raises(KeyError), Meter():
        raise KeyError
    assert torch.UntypedStorage.resize_ is before


def test_a_gradient_beside_the_module_is_in_flight():
    kept = []
    meter = metered(lambda module, x: (plain(module, x), kept.append(torch.empty(500))))
    assert meter.held().by_category["in flight"] < 2000
    assert meter.live_bytes >= 2000


def test_a_step_without_backward_has_no_end_of_backward():
    with pytest.raises(RuntimeError, match="no held yet"):
        metered(lambda module, x: None).held()
