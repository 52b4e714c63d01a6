"""Bytes for backward, by category and over time.

Oracles: bytes worked out by hand from shapes; torch's own optimizer and sharding; autograd's own
lifetime (what is live after backward); storages freed one by one. All numbers are whole, so they
are compared for equality.
"""

import gc
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from labkit.launch import run_ranks
from labkit.measure.memory import LiveParameters, SavedActivations, module_bytes

B, D, F = 3, 5, 7


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(D, F), torch.nn.ReLU(), torch.nn.Linear(F, D))


def inputs(requires_grad=False):
    return torch.randn(B, D, generator=torch.Generator().manual_seed(0)).requires_grad_(
        requires_grad
    )


def test_an_mlp_keeps_its_input_and_what_relu_made():
    model = mlp()
    with SavedActivations(model) as saved:
        loss = model(inputs()).sum()
    # x for the first weight; relu's result once, for relu and for the second weight.
    assert saved.bytes == 4 * B * D + 4 * B * F
    assert saved.num_tensors == 2
    assert saved.live_bytes == saved.bytes
    loss.backward()
    assert saved.live_bytes == 0
    assert saved.bytes == 4 * B * D + 4 * B * F


def test_parameters_count_where_no_module_is_given():
    model = mlp()
    with SavedActivations() as saved:
        model(inputs(requires_grad=True)).sum()
    assert saved.bytes == 4 * (B * D + B * F) + 4 * 2 * D * F


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_keeps_what_the_formula_says(dtype):
    """The input and q, k, v [B, T, D]; softmax's result [B, T, T]."""
    batch, length = 2, 6
    x = torch.randn(batch, length, D, dtype=dtype, generator=torch.Generator().manual_seed(0))
    query, key, value = (torch.nn.Linear(D, D, bias=False, dtype=dtype) for _ in range(3))
    model = torch.nn.ModuleList([query, key, value])
    with SavedActivations(model) as saved:
        q, k, v = query(x), key(x), value(x)  # [B, T, D]
        y = (q @ k.transpose(1, 2)).softmax(-1) @ v  # [B, T, D]
    per_token = 4 * D + length  # x, q, k, v; one row of scores
    assert saved.bytes == batch * length * per_token * x.element_size()
    y.sum().backward()
    assert saved.live_bytes == 0


def test_views_of_one_storage_count_once_and_whole():
    x = torch.ones(4, 10, requires_grad=True)
    y = x * 1.0  # a storage of its own, 160 bytes
    with SavedActivations() as saved:
        (y[:, :3] ** 2).sum() + (y[:, 2:] ** 2).sum()
    assert saved.num_tensors == 1
    assert saved.bytes == 160


def test_a_checkpointed_block_keeps_its_input_only():
    model = mlp()
    x = inputs(requires_grad=True)
    with SavedActivations(model) as saved:
        loss = checkpoint(model, x, use_reentrant=False).sum()
    assert saved.bytes == 4 * B * D
    loss.backward()
    assert saved.live_bytes == 0


def test_nothing_is_held_longer_than_autograd_holds_it():
    model = mlp()
    with SavedActivations(model) as saved:
        hidden = model[1](model[0](inputs()))
        loss = (hidden * hidden).sum()
    storage = weakref.ref(hidden.untyped_storage())
    del hidden, loss  # the graph is dropped without a backward
    gc.collect()
    assert storage() is None
    assert saved.live_bytes == 0
    assert saved.num_tensors == 2


def test_gradients_do_not_change_under_the_hooks():
    plain, watched = mlp(), mlp()
    watched.load_state_dict(plain.state_dict())
    plain(inputs()).square().sum().backward()
    with SavedActivations(watched):
        loss = watched(inputs()).square().sum()
    loss.backward()
    for theirs, mine in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(theirs.grad, mine.grad)


def test_second_derivatives_do_not_change_under_the_hooks():
    def second(x):
        first = torch.autograd.grad((x.exp() * x.tanh()).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), x)[0]

    plain = second(inputs(requires_grad=True))
    with SavedActivations() as saved:
        watched = second(inputs(requires_grad=True))
    assert torch.equal(plain, watched)
    assert saved.live_bytes == 0


def test_the_table_adds_up():
    model = mlp()
    with SavedActivations(model) as saved:
        model(inputs()).sum()
    lines = [line.split() for line in saved.table().splitlines()]
    assert lines[1] == ["[3,", "7]", "float32", "1", "84"]
    assert lines[2] == ["[3,", "5]", "float32", "1", "60"]
    assert lines[3] == ["all", "2", "144"]


def test_a_module_and_adam_by_category():
    model = torch.nn.Sequential(torch.nn.Linear(D, F), torch.nn.BatchNorm1d(F))
    optimizer = torch.optim.AdamW(model.parameters())
    before = module_bytes(model, optimizer)
    numbers = D * F + F + 2 * F
    assert before.parameter_bytes == 4 * numbers
    assert before.gradient_bytes == before.optimizer_bytes == 0
    assert before.buffer_bytes == 4 * 2 * F + 8  # running mean and variance; a counter in int64
    model(inputs()).sum().backward()
    optimizer.step()
    after = module_bytes(model, optimizer)
    assert after.gradient_bytes == 4 * numbers
    assert after.optimizer_bytes == 8 * numbers + 4 * 4  # two moments; a step count for each tensor
    assert after.total_bytes == 16 * numbers + 16 + before.buffer_bytes


def test_tied_parameters_count_once_and_masters_as_optimizer():
    model = torch.nn.Sequential(torch.nn.Embedding(F, D), torch.nn.Linear(D, F, bias=False))
    model[1].weight = model[0].weight
    assert module_bytes(model).parameter_bytes == 4 * D * F
    model.bfloat16()
    master = model[0].weight.detach().float().requires_grad_()
    held = module_bytes(model, torch.optim.SGD([master], lr=0.1))
    assert (held.parameter_bytes, held.optimizer_bytes) == (2 * D * F, 4 * D * F)


def test_a_shard_that_keeps_the_whole_alive_is_no_shard():
    full = torch.zeros(100)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(full[:25])
    assert module_bytes(layer).parameter_bytes == 400
    layer.weight = torch.nn.Parameter(full[:25].clone())
    assert module_bytes(layer).parameter_bytes == 100
    layer.weight.untyped_storage().resize_(0)
    assert module_bytes(layer).parameter_bytes == 0


def distributed_layer(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    layer = torch.nn.Module()
    mesh = DeviceMesh("cpu", list(range(group.size())))
    layer.weight = torch.nn.Parameter(distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)]))
    layer.weight.grad = torch.zeros_like(layer.weight)
    held = module_bytes(layer)
    return held.parameter_bytes, held.gradient_bytes


def test_of_a_distributed_tensor_the_local_shard_counts():
    assert run_ranks(distributed_layer, 2) == [(48, 48)] * 2


def layers():
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))  # 64 bytes


def test_live_parameters_see_storages_shrink_and_grow():
    model = layers()
    with LiveParameters(model) as live:
        assert live.now_bytes == 192
        for layer in model:
            layer.weight.untyped_storage().resize_(0)
        assert live.now_bytes == 0
        for layer in model:  # one layer at a time, as in a sharded forward
            layer.weight.untyped_storage().resize_(64)
            layer.weight.data.zero_()
            assert live.now_bytes == 64
            layer.weight.untyped_storage().resize_(0)
    assert live.peak_bytes == 192
    with LiveParameters(model) as live, torch.no_grad():
        for layer in model:
            layer.weight.untyped_storage().resize_(64)
            layer.weight.zero_()
            layer.weight.untyped_storage().resize_(0)
    assert live.peak_bytes == 64


def test_live_parameters_see_weights_swapped_in_and_dropped():
    model = layers()
    shards = [layer.weight.detach().view(-1)[:8].clone() for layer in model]
    for layer, shard in zip(model, shards, strict=True):
        layer.weight.data = shard
    with LiveParameters(model) as live, torch.no_grad():
        assert live.now_bytes == 3 * 32
        x = torch.ones(2, 4)
        for layer, shard in zip(model, shards, strict=True):
            layer.weight.data = torch.cat([shard, shard]).view(4, 4)
            x = layer(x)
            layer.weight.data = shard
        assert live.now_bytes == 3 * 32
    assert live.peak_bytes == 3 * 32 + 64  # the shard's storage is alive beside the full weight


def test_a_weight_that_somebody_still_holds_is_alive():
    model, leak = layers(), []
    with LiveParameters(model) as live, torch.no_grad():
        for layer in model:
            full = torch.ones(4, 4)
            layer.weight.data = full
            layer(torch.ones(2, 4))
            leak.append(full)
            layer.weight.data = torch.zeros(1)
        assert live.now_bytes == 3 * 64 + 3 * 4
        leak.clear()
        del full
        assert live.now_bytes == 3 * 4


def sharded_peak(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh("cpu", list(range(group.size())))
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(6)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with LiveParameters(model) as live:
        model(torch.ones(2, 16)).sum().backward()
        return live.peak_bytes, live.now_bytes


def test_torchs_own_sharding_has_few_whole_layers_alive():
    layer_bytes, shards = 16 * 16 * 4, 6 * 16 * 16 * 4 // 2
    for peak, now in run_ranks(sharded_peak, 2):
        assert shards + layer_bytes <= peak <= shards + 2 * layer_bytes
        assert now == shards
