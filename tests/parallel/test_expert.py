"""Expert parallelism: experts shared out, tokens sent to them and back.

Promised: outputs and gradients of input, router and experts are those of the dense layer, on 1, 2
and 4 ranks, for random, one-sided and empty routing, k 1 and 2, odd and unequal token counts, and
a rank without tokens; backward reaches every all-to-all although no input needs a gradient; the
auxiliary loss is the same for any ep; under dp × ep the gradients have the scale the docstring
gives; what does not divide is refused on every rank before anything is sent.
Oracle: moe_reference, every expert on every token, on one process in float64.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce
from labkit.comm.mesh import Mesh
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.moe import MoE, auxiliary_loss, moe_reference
from labkit.model.routing import limit
from labkit.parallel.expert import ExpertParallelMoE, balance

ATOL = 1e-12  # sums of at most 41 terms of unit scale in float64
ROUTINGS = {
    "random": [0.0] * 8,
    "all to one": [0, 0, 0, 0, 0, 9, 0, 7],
    "empty experts": [0, -9, 0, 0, -9, -9, 0, 0],
}
COUNTS = {1: [[7]], 2: [[7, 4], [0, 5], [3, 0]], 4: [[3, 1, 5, 2], [4, 0, 3, 0]]}


def layer(top_k=2, bias=None, num_experts=8):
    torch.manual_seed(0)
    sizes = dict(hidden_size=5, intermediate_size=6, num_experts=num_experts, top_k=top_k)
    moe = MoE(**sizes, balancing=True).double()
    torch.nn.init.normal_(moe.router.weight)
    if bias is not None:
        moe.bias.copy_(torch.tensor(bias))
    return moe


def tokens(num_tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, 5, generator=generator, dtype=torch.float64)


def whole(moe, counts, *, parameters):
    """Output and gradients of x and of parameters on one process, x cut as the ranks have it."""
    x = tokens(sum(counts)).requires_grad_()
    out = moe_reference(moe, x)
    grads = torch.autograd.grad(out, [x, *parameters], tokens(sum(counts), seed=2))
    return out.detach().split(counts), grads[0].split(counts), grads[1:]


def own_parameters(moe, rank, size):
    share = len(moe.experts) // size
    return [p for f in moe.experts[rank * share : (rank + 1) * share] for p in f.parameters()]


def errors(group, counts, top_k, bias, needs_grad):
    """Largest differences of out, dx, experts' and the router's gradients."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    moe = layer(top_k, bias)
    parallel = ExpertParallelMoE(moe, group)
    x = tokens(sum(counts)).split(counts)[rank].clone().requires_grad_(needs_grad)
    before = x.detach().clone()
    with CommLedger() as ledger:
        out = parallel(x)
        out.backward(tokens(sum(counts), seed=2).split(counts)[rank])
    assert ledger.count() == ledger.count("all_to_all") == 5, "three forward, two backward"
    assert torch.equal(x, before), "an input is changed"

    parameters = [*own_parameters(moe, rank, size), moe.router.weight]
    outs, dx, grads = whole(moe, counts, parameters=parameters)
    mine = [p.grad for p in parallel.experts.parameters()]
    assert len(mine) == len(grads) - 1
    assert all(g is not None for g in mine), "an expert without tokens has zeros, not None"
    pairs = [(out, outs[rank]), *zip(mine, grads, strict=False)]
    pairs.append((all_reduce(parallel.local.router.weight.grad, group), grads[-1]))
    if needs_grad:
        pairs.append((x.grad, dx[rank]))
    assert all(a.shape == b.shape for a, b in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())


def all_errors(group, cases):
    return {case: errors(group, *args) for case, args in cases.items()}


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_the_numbers_of_the_dense_layer(ep):
    cases = {
        (name, top_k, tuple(counts), needs_grad): (counts, top_k, bias, needs_grad)
        for name, bias in ROUTINGS.items()
        for top_k in (1, 2)
        for counts in COUNTS[ep]
        for needs_grad in (True, False)
    }
    for found in run_ranks(all_errors, ep, cases, device="cpu"):
        assert {case: e for case, e in found.items() if not e < ATOL} == {}


def some_need_a_gradient(group):
    """One rank's input needs a gradient, the other's does not; neither is left waiting."""
    x = tokens(3).requires_grad_(dist.get_rank(group) == 0)
    ExpertParallelMoE(layer(), group)(x.unflatten(0, (1, 3))).sum().backward()
    with torch.no_grad(), CommLedger() as ledger:
        out = ExpertParallelMoE(layer().bfloat16(), group)(x.bfloat16())
    assert out.dtype == torch.bfloat16
    return x.grad is not None, out.requires_grad, ledger.count()


def test_inputs_that_need_a_gradient_on_one_rank_only():
    found = run_ranks(some_need_a_gradient, 2, device="cpu")
    assert found == [(True, False, 3), (False, False, 3)]


AUXILIARY = 0.3


def scaled_gradients(group, dp, ep):
    """Router's and own experts' gradients of a mean over all tokens, by the docstring's rule."""
    mesh = Mesh(dp=dp, ep=ep, joint=[("dp", "ep")])
    every, rank = mesh.group("dp", "ep"), dist.get_rank(group)
    moe = layer()
    parallel = ExpertParallelMoE(moe, mesh.group("ep"))
    x = tokens(12).chunk(dp * ep)[rank]
    routing = parallel.route(x)
    balanced = balance(routing, every)
    loss = parallel.mix(x, routing).square().mean() + AUXILIARY * balanced.loss
    loss.backward()
    router = all_reduce(parallel.local.router.weight.grad, every) / (dp * ep)
    experts = [
        all_reduce(p.grad, mesh.group("dp")) / (dp * ep) for p in parallel.experts.parameters()
    ]
    whole_routing = moe.route(tokens(12))
    whole_loss = moe_reference(moe, tokens(12)).square().mean()
    whole_auxiliary = auxiliary_loss(whole_routing)
    (whole_loss + AUXILIARY * whole_auxiliary).backward()
    wanted = own_parameters(moe, mesh.coordinate("ep"), ep)
    assert torch.equal(balanced.counts, whole_routing.indices.flatten().bincount(minlength=8))
    pairs = [(p.grad, g) for p, g in zip(wanted, experts, strict=True)]
    pairs += [(moe.router.weight.grad, router), (whole_auxiliary, balanced.loss)]
    assert moe.router.weight.grad.abs().max() > 1e-3
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize(("dp", "ep"), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)])
def test_gradient_scale_over_data_and_experts(dp, ep):
    assert max(run_ranks(scaled_gradients, dp * ep, dp, ep, device="cpu")) < ATOL


def balances(group, counts):
    """The auxiliary loss of unequal shares, and what it cost."""
    moe = layer()
    routing = moe.route(tokens(sum(counts)).split(counts)[dist.get_rank(group)])
    with CommLedger() as ledger:
        found = balance(routing, group)
        found.loss.backward()
    assert not found.counts.requires_grad
    return found.loss.item(), auxiliary_loss(moe.route(tokens(sum(counts)))).item(), ledger.count()


@pytest.mark.parametrize("counts", [[7, 0], [2, 9], [0, 0]])
def test_the_auxiliary_loss_of_unequal_shares(counts):
    for found, expected, calls in run_ranks(balances, 2, counts, device="cpu"):
        assert found == pytest.approx(expected, abs=ATOL)
        assert calls == 3


def refused(group, num_experts):
    with CommLedger() as ledger:
        try:
            ExpertParallelMoE(layer(num_experts=num_experts), group)
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


@pytest.mark.parametrize(
    ("ep", "num_experts", "words"),
    [(2, 3, "3 experts over ep=2: they must divide"), (4, 2, "2 experts over ep=4: a rank needs")],
)
def test_what_does_not_fit_is_refused(ep, num_experts, words):
    for message, calls in run_ranks(refused, ep, num_experts, device="cpu"):
        assert words in message
        assert calls == 0


def lost_scores(group, bad_rank):
    """What a rank says, and what was sent, where one rank's router is nan."""
    moe, rank = layer(), dist.get_rank(group)
    if rank == bad_rank:
        moe.router.weight.data[3, 2] = torch.nan
    parallel = ExpertParallelMoE(moe, group)
    with CommLedger() as ledger:
        try:
            parallel(tokens((3, 5)[rank]))
        except ValueError as error:
            return str(error), [(call.operation, call.bytes_sent) for call in ledger.ops]
    return "", [(call.operation, call.bytes_sent) for call in ledger.ops]


def test_a_router_of_nan_is_told_to_all_ranks_before_a_token_is_sent():
    for bad_rank, words in ((0, "3 tokens of group rank 0"), (1, "5 tokens of group rank 1")):
        for message, calls in run_ranks(lost_scores, 2, bad_rank, device="cpu"):
            assert f"router scores are nan for {words}" in message
            assert calls == [("all_to_all", 4 * 8)]  # the other rank's four counts, int64


def limited(group):
    """A capacity of the rank's own tokens: the same as its tokens alone on one process."""
    moe, x = layer(), tokens(9, seed=dist.get_rank(group))
    found = limit(moe.route(x), 0.75)
    out = ExpertParallelMoE(moe, group).mix(x, found.routing)
    alone = moe.mix(x, found.routing)
    return found.num_dropped, float((out - alone).detach().abs().max())


def test_dropped_copies_weigh_nothing_over_ranks_too():
    for num_dropped, error in run_ranks(limited, 2, device="cpu"):
        assert num_dropped > 0
        assert error < ATOL
