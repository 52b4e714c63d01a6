"""Recomputation changes the bytes that are kept and nothing else.

Oracles: the plain run, and torch.utils.checkpoint; the same operations run in the same order, so
everything is compared with torch.equal. Bytes by hand from shapes, seen by SavedActivations.
"""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import dropout, linear
from torch.utils.checkpoint import checkpoint

from labkit.measure.memory import SavedActivations
from labkit.parallel.recompute import recompute, recomputing

B, T, D, F = 2, 3, 5, 41
library = partial(checkpoint, use_reentrant=False)


class Mlp(nn.Module):
    """A unit with a dropout mask; counts its runs."""

    def __init__(self, seed=0, probability=0.5):
        super().__init__()
        self.up, self.down = nn.Linear(D, F), nn.Linear(F, D)
        self.probability, self.runs = probability, 0
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)

    def forward(self, x, scale=1.0):
        self.runs += 1
        hidden = dropout(torch.relu(self.up(x)), self.probability)  # [B, T, F]
        return x + scale * self.down(hidden)  # [B, T, D]


def stream(requires_grad=True, dtype=torch.float64):
    x = torch.randn(B, T, D, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return x.requires_grad_(requires_grad)


def plainly(function, *args, **kwargs):
    return function(*args, **kwargs)


def two_layers(call, *, requires_grad=True):
    """Loss, input gradient and parameter gradients of two units in a row."""
    model = nn.ModuleList([Mlp(0), Mlp(1)]).double()
    x = stream(requires_grad)
    torch.manual_seed(3)
    y = call(model[1], call(model[0], x), scale=2.0)
    after = torch.rand(4)  # what the random stream gives next must not change either
    (y * y).sum().backward()
    return [y, after, x.grad, *(p.grad for p in model.parameters()), torch.rand(4)]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("oracle", [plainly, library])
def test_outputs_gradients_and_random_stream_are_the_same(oracle, requires_grad):
    ours = two_layers(recompute, requires_grad=requires_grad)
    theirs = two_layers(oracle, requires_grad=requires_grad)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None and other is None) or torch.equal(mine, other)
    assert (ours[2] is None) is not requires_grad


def test_two_masks_differ_so_a_lost_random_state_would_show():
    x = torch.ones(1000)
    assert not torch.equal(dropout(x), dropout(x))


def test_what_is_kept_is_the_input_and_it_goes():
    kept = {}
    for call in (plainly, recompute, library):
        model, x = Mlp(probability=0.0), stream(dtype=torch.float32)
        with SavedActivations(model) as saved:
            loss = call(model, x).sum()
        kept[call] = saved.bytes
        assert saved.live_bytes == saved.bytes
        loss.backward()
        del loss
        gc.collect()
        assert saved.live_bytes == 0
    # Plain: x for the first weight; relu's result, for itself and for the second weight.
    assert kept[plainly] == 4 * B * T * (D + F)
    assert kept[recompute] == kept[library] == 4 * B * T * D


def test_the_unit_runs_twice_and_its_activations_go_as_they_are_used():
    model = Mlp().double()
    loss = recompute(model, stream()).sum()
    assert model.runs == 1
    loss.backward()
    assert model.runs == 2


def core(q, k, v, probability=0.2):
    """The attention core with its scores [B, T, S] and dropout."""
    weights = dropout((q @ k.transpose(1, 2) / D**0.5).softmax(-1), probability)  # [B, T, S]
    return weights @ v  # [B, T, D]


class Attention(nn.Module):
    def __init__(self, call):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.call = call
        self.weights = nn.ParameterList(torch.randn(D, D, generator=generator) for _ in range(4))

    def forward(self, x):
        q, k, v = (linear(x, w) for w in self.weights[:3])  # [B, T, D]
        return linear(self.call(core, q, k, v), self.weights[3])  # [B, T, D]


def test_selective_keeps_q_k_v_and_drops_what_grows_with_the_square():
    length, kept, grads = 64, {}, {}
    for call in (plainly, recompute):
        model = Attention(call)
        x = torch.randn(B, length, D, generator=torch.Generator().manual_seed(2))
        torch.manual_seed(5)
        with SavedActivations(model) as saved:
            loss = model(x).square().sum()
        loss.backward()
        kept[call], grads[call] = saved.bytes, [w.grad for w in model.weights]
    a_stream, square = 4 * B * length * D, B * length**2
    # x, q, k, v, the core's result, and the squared output. Softmax, the dropout's
    # mask, which torch keeps as numbers of four bytes on a CPU, and what it lets through.
    assert kept[recompute] == 6 * a_stream
    assert kept[plainly] == 6 * a_stream + (4 + 4 + 4) * square
    assert all(map(torch.equal, grads[plainly], grads[recompute]))


def test_a_generator_among_the_arguments_is_put_back_too():
    def noisy(x, generator):
        return x * torch.rand(x.shape, generator=generator, dtype=x.dtype)

    x, twin = stream(), stream()
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    recompute(noisy, x, generator=generators[0]).sum().backward()
    noisy(twin, generators[1]).sum().backward()
    assert torch.equal(x.grad, twin.grad)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_autocast_is_the_same_in_the_second_run():
    grads = {}
    for call in (plainly, recompute, library):
        model, x = Mlp(probability=0.0), stream(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(model, x).square().sum()
        loss.backward()  # outside of autocast, as a trainer does
        grads[call] = [x.grad, *(p.grad for p in model.parameters())]
    for mine, plain, theirs in zip(*(grads[c] for c in (recompute, plainly, library)), strict=True):
        assert torch.equal(mine, plain)
        assert torch.equal(mine, theirs)


def test_several_results_other_arguments_and_a_result_that_nobody_uses():
    def both(x, power, *, pair, name):
        assert name == "unit"
        return {"a": x**power, "rest": (pair[0] * x, power)}

    results = []
    for call in (plainly, recompute):
        x, y = stream(), stream()
        out = call(both, x, 3, pair=[y, None], name="unit")
        out["a"].sum().backward()
        results.append((x.grad, out["rest"][1]))
        assert y.grad is None
    assert torch.equal(results[0][0], results[1][0])
    assert results[1][1] == 3


def test_a_weight_that_the_unit_closes_over_gets_its_gradient():
    weights = [stream(), stream()]
    for call, weight in zip((plainly, recompute), weights, strict=True):
        call(lambda x, w=weight: x * w * w, stream(requires_grad=False)).sum().backward()
    assert torch.equal(weights[0].grad, weights[1].grad)


def test_frozen_weights_stay_without_gradient():
    grads = []
    for call in (plainly, recompute):
        model, x = Mlp(probability=0.0).double(), stream()
        model.up.requires_grad_(False)
        call(model, x).square().sum().backward()
        assert model.up.weight.grad is None
        grads.append([x.grad, model.down.weight.grad])
    assert all(map(torch.equal, *grads))


def test_a_unit_inside_a_unit():
    inner, outer = [], []
    for call in (plainly, recompute):
        model, x = Mlp().double(), stream()
        torch.manual_seed(4)

        def unit(x, call=call, model=model):
            return call(model, x.sin()) * 2

        with SavedActivations(model) as saved:
            loss = call(unit, x).square().sum()
        loss.backward()
        inner.append(model.runs)
        outer.append([x.grad, *(p.grad for p in model.parameters())])
    assert inner == [1, 3]  # once forward, once for the outer unit, once for itself
    assert all(map(torch.equal, *outer))
    assert saved.bytes == 2 * 8 * B * T * D  # the outer unit's input, and what square() keeps


def test_a_kept_graph_can_go_back_twice_and_a_freed_one_says_so():
    model, x = Mlp().double(), stream()
    loss = recompute(model, x).square().sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    assert torch.equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_second_derivatives():
    seconds = []
    for call in (plainly, recompute):
        x = stream()
        loss = call(lambda x: (x.exp() * x.tanh()).sum(), x)
        first = torch.autograd.grad(loss, x, create_graph=True)[0]
        seconds.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert torch.equal(*seconds)


def test_hooks_on_parameters_fire_once_a_backward():
    model, fired = Mlp().double(), []
    model.up.weight.register_post_accumulate_grad_hook(lambda p: fired.append(p.grad.clone()))
    recompute(model, stream()).sum().backward()
    assert len(fired) == 1
    assert torch.equal(fired[0], model.up.weight.grad)


def test_without_gradients_it_is_a_plain_call():
    model = Mlp()
    with torch.no_grad():
        assert not recompute(model, stream(dtype=torch.float32)).requires_grad
    assert model.runs == 1


def test_a_dropped_graph_lets_the_input_go():
    x = stream().clone()
    there = weakref.ref(x)
    loss = recompute(Mlp().double(), x).sum()
    del x, loss
    gc.collect()
    assert there() is None


def test_hooks_around_a_unit_decide_where_its_input_is_kept():
    x = stream() * 1.0
    there, plain = weakref.ref(x), x.detach().sin().sum()
    with saved_tensors_hooks(lambda kept: kept.detach().clone(), lambda kept: kept):
        loss = recompute(torch.sin, x).sum()
        del x
    gc.collect()
    assert there() is None  # offloaded, say: the unit itself holds no second reference
    assert torch.equal(loss, plain)


def test_after_backward_what_the_second_run_made_is_gone_though_the_graph_is_kept():
    storages = []

    def unit(x):
        hidden = x.exp()
        storages.append(weakref.ref(hidden.untyped_storage()))
        return hidden.tanh()

    loss = recompute(unit, stream()).sum()
    loss.backward(retain_graph=True)
    gc.collect()
    assert [storage() for storage in storages] == [None, None]


def test_other_shapes_in_the_second_run_are_an_error():
    lengths = iter([2, 3])

    def changing(x):
        return x[:, : next(lengths)].exp()

    loss = recompute(changing, stream()).sum()
    expected = r"saved tensor 0 was \[2, 2, 5\] .* in the first run and is \[2, 3, 5\]"
    with pytest.raises(RuntimeError, match=expected):
        loss.backward()


def test_another_number_of_saved_tensors_is_an_error():
    depths = iter([2, 1])

    def changing(x):
        for _ in range(next(depths)):
            x = x.exp()
        return x

    with pytest.raises(RuntimeError, match="first run saved 2 tensors and the second 1"):
        recompute(changing, stream()).sum().backward()


def test_a_unit_that_writes_into_its_input_is_refused():
    def rotate_in_place(x):
        return x.mul_(2).sin()

    with pytest.raises(ValueError, match=r"argument 0 was written into 1 time\(s\), 0 are allowed"):
        recompute(rotate_in_place, stream() * 1.0)


@pytest.mark.parametrize("watched", [False, True])
def test_an_input_that_is_changed_before_backward_is_an_error(watched):
    x = stream() * 1.0
    with SavedActivations() if watched else torch.enable_grad():
        loss = recompute(torch.sin, x).sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|written into"):
        loss.backward()


def test_modules_are_wrapped_inside_the_block_only_and_backward_may_come_later():
    model = nn.Sequential(Mlp(0), Mlp(1)).double()
    with recomputing(model):
        y = model(stream())
        with pytest.raises(KeyError), recomputing(model[:1]):
            raise KeyError
        y = y + model(stream())  # the inner block left the outer one as it was
    y.sum().backward()
    assert [unit.runs for unit in model] == [4, 4]
    model(stream()).sum().backward()
    assert [unit.runs for unit in model] == [5, 5]
    assert all("forward" not in vars(unit) for unit in model)
