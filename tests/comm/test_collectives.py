"""Collectives with a backward, against the same linear map written on one process.

Promised: values and gradients are those of the map and its transpose; inputs and incoming gradients
stay as they were; results share no memory with them; any strides; sizes that do not divide are an
error on every rank before anything is sent. Oracle: plain torch in one process, where the tensors
of all ranks stand in one list; and torch's own differentiable collectives. Values are small whole
numbers in float64, so every sum is exact and the comparison is torch.equal.
"""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit.comm import collectives
from labkit.launch import RankError, run_ranks
from labkit.measure.ledger import CommLedger


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective and what it is on a list of tensors, one a rank.

    one_in: every rank holds the same x; one_out: every rank gets the same y, and uses it alike.
    """

    name: str
    dim: int = 0
    one_in: bool = False
    one_out: bool = False

    def apply(self, x, group):
        collective = getattr(collectives, self.name)
        if self.name in ("copy_to", "reduce_from"):
            return collective(x, group)
        if self.name == "all_to_all":
            return collective(x, group, *sizes(group.rank(), group.size()))
        return collective(x, group, self.dim)

    def oracle(self, xs):
        world = len(xs)
        match self.name:
            case "copy_to":
                return xs
            case "reduce_from":
                return [sum(xs)] * world
            case "gather_from" | "all_gather":
                return [torch.cat(xs, self.dim)] * world
            case "scatter_to":
                return list(xs[0].chunk(world, self.dim))
            case "reduce_scatter":
                return list(sum(xs).chunk(world, self.dim))
        pieces = [x.split(sizes(rank, world)[0]) for rank, x in enumerate(xs)]
        return [torch.cat([piece[rank] for piece in pieces]) for rank in range(world)]


def sizes(rank, world):
    """Rows sent and received: rank r sends (r + 2 s + 1) % 3 to rank s, so some pairs send none."""
    send = [(rank + 2 * other + 1) % 3 for other in range(world)]
    receive = [(other + 2 * rank + 1) % 3 for other in range(world)]
    return send, receive


CASES = [
    Case(name="copy_to", one_in=True),
    Case(name="reduce_from", one_out=True),
    Case(name="gather_from", one_out=True),
    Case(name="gather_from", dim=-1, one_out=True),
    Case(name="scatter_to", one_in=True),
    Case(name="scatter_to", dim=1, one_in=True),
    Case(name="all_gather"),
    Case(name="all_gather", dim=1),
    Case(name="reduce_scatter"),
    Case(name="reduce_scatter", dim=-1),
    Case(name="all_to_all"),
]
EVEN = [case for case in CASES if case.name != "all_to_all"]  # those that take any x


def in_one_world(world, fn, cases, *more):
    """Results of fn(group, case, ...) as [case][rank]; one world, as starting it costs most."""

    def all_cases(group):
        return [fn(group, case, *args) for case, *args in zip(cases, *more, strict=True)]

    return list(zip(*run_ranks(all_cases, world), strict=True))


def numbers(shape, seed, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 9, tuple(shape), generator=g).to(dtype)


def inputs(case, world):
    """The x of each rank, [rows, 3, 4 * world]; the same for all where case.one_in."""
    rows = {"all_to_all": lambda rank: sum(sizes(rank, world)[0])}.get(
        case.name, lambda _: 2 * world
    )
    return [numbers((rows(r), 3 * world, 4 * world), 0 if case.one_in else r) for r in range(world)]


def expected(case, world):
    """Values, incoming gradients and outgoing gradients of all ranks, by one process."""
    xs = [x.requires_grad_() for x in inputs(case, world)]
    xs = xs[:1] * world if case.one_in else xs
    ys = case.oracle(xs)
    dys = [numbers(y.shape, 100 + (0 if case.one_out else r)) for r, y in enumerate(ys)]
    terms = [(y * dy).sum() for y, dy in zip(ys, dys, strict=True)]
    (terms[0] if case.one_out else sum(terms)).backward()
    return [y.detach() for y in ys], dys, [x.grad for x in xs]


def forward_and_backward(group, case, xs, dys):
    x, dy = xs[group.rank()].clone().requires_grad_(), dys[group.rank()].clone()
    y = case.apply(x, group)
    y.backward(dy)
    assert torch.equal(x, xs[group.rank()]), "the input was written to"
    assert torch.equal(dy, dys[group.rank()]), "the incoming gradient was written to"
    x.grad.add_(1)
    assert torch.equal(dy, dys[group.rank()]), "the outgoing gradient is the incoming one"
    return y.detach(), x.grad - 1


def all_expected(world):
    """Inputs, values, incoming and outgoing gradients, each by case."""
    return (
        [inputs(case, world) for case in CASES],
        *zip(*(expected(c, world) for c in CASES), strict=True),
    )


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_values_and_gradients(world):
    xs, ys, dys, dxs = all_expected(world)
    ran = in_one_world(world, forward_and_backward, CASES, xs, dys)
    for i, case in enumerate(CASES):
        for rank, (y, dx) in enumerate(ran[i]):
            assert torch.equal(y, ys[i][rank]), case
            assert torch.equal(dx, dxs[i][rank]), case


@pytest.mark.parametrize("world", [2, 3])
def test_backward_is_the_transpose(world):
    """<A x, y> = <x, A^T y> summed over ranks, where a tensor that all ranks share counts once."""
    all_xs, _, all_dys, _ = all_expected(world)
    ran = in_one_world(world, forward_and_backward, CASES, all_xs, all_dys)
    for case, xs, dys, ranks in zip(CASES, all_xs, all_dys, ran, strict=True):
        left = [(y * dy).sum() for (y, _), dy in zip(ranks, dys, strict=True)]
        right = [(x * dx).sum() for x, (_, dx) in zip(xs, ranks, strict=True)]
        assert (left[0] if case.one_out else sum(left)) == (
            right[0] if case.one_in else sum(right)
        ), case
        assert any(left), "a vacuous test"


def strided(x):
    """The same values as a view with an offset and every stride odd."""
    base = x.new_full([2 * size + 1 for size in reversed(x.shape)], torch.nan)
    view = base[tuple(slice(1, None, 2) for _ in x.shape)].permute(*reversed(range(x.dim())))
    return view.copy_(x)


def on_strided_views(group, case, xs, dys):
    x = strided(xs[group.rank()]).requires_grad_()
    y = case.apply(x, group)
    y.backward(strided(dys[group.rank()]), retain_graph=True)
    dx, x.grad = x.grad, None
    y.sum().backward()  # an incoming gradient of stride 0
    assert not x.is_contiguous()
    assert case.name == "copy_to" or y.is_contiguous()
    return y.detach(), dx, x.grad


def test_strides_do_not_matter():
    xs, ys, dys, dxs = all_expected(2)
    ones = [[torch.ones_like(dy) for dy in by_rank] for by_rank in dys]
    of_ones = in_one_world(2, forward_and_backward, CASES, xs, ones)
    for i, ranks in enumerate(in_one_world(2, on_strided_views, CASES, xs, dys)):
        for rank, (y, dx, dx_of_ones) in enumerate(ranks):
            assert torch.equal(y, ys[i][rank]), CASES[i]
            assert torch.equal(dx, dxs[i][rank]), CASES[i]
            assert torch.equal(dx_of_ones, of_ones[i][rank][1]), CASES[i]


def column_of_a_matrix(group):
    base = torch.arange(6.0).view(3, 2) + 10 * group.rank()
    column = base[:, 0]
    summed = collectives.reduce_from(column, group)
    told = collectives.broadcast(column, group, root=1)
    return summed, told, collectives.all_reduce(column, group, dist.ReduceOp.MAX), base


def test_a_column_view_is_reduced_whole_and_left_alone():
    for rank, (summed, told, largest, base) in enumerate(run_ranks(column_of_a_matrix, 2)):
        assert summed.tolist() == [10, 14, 18]
        assert told.tolist() == largest.tolist() == [10, 12, 14]
        assert torch.equal(base, torch.arange(6.0).view(3, 2) + 10 * rank)


def shares_memory(group, case, xs):
    x = xs[group.rank()]
    y = case.apply(x, group)
    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_results_are_new_memory_but_for_the_entry():
    """In a group of one, where nothing forces a copy."""
    shares = in_one_world(1, shares_memory, CASES, [inputs(case, 1) for case in CASES])
    assert [share for (share,) in shares] == [case.name == "copy_to" for case in CASES]


def beside_a_residual(group, case):
    """h feeds the collective and a second consumer; a hook sees the gradient of the output."""
    x = numbers((4, 4), group.rank()).requires_grad_()
    h = x * 2
    y = case.apply(h, group)
    seen = []
    y.register_hook(lambda grad: seen.append(grad.clone()))
    dy = torch.ones_like(y)
    torch.autograd.backward([y, h.sum()], [dy, torch.tensor(1.0, dtype=torch.float64)])
    (alone,) = torch.autograd.grad(case.apply(h2 := (x * 2), group), h2, dy)
    return (
        torch.equal(x.grad, 2 * (alone + 1)),
        torch.equal(seen[0], torch.ones_like(y)),
        bool((dy == 1).all()),
    )


def test_a_second_consumer_of_the_gradient_sees_it_unchanged():
    for case, ranks in zip(EVEN, in_one_world(2, beside_a_residual, EVEN), strict=True):
        assert ranks == ((True, True, True),) * 2, case


def under_recompute(group, case, xs):
    x = xs[group.rank()].clone().requires_grad_()
    grads = []
    for _ in range(2):
        x.grad = None
        y = checkpoint(lambda x: case.apply(x * 2, group).pow(2), x, use_reentrant=False)
        y.sum().backward()
        grads.append(x.grad)
    plain = xs[group.rank()].clone().requires_grad_()
    case.apply(plain * 2, group).pow(2).sum().backward()
    return all(torch.equal(grad, plain.grad) for grad in grads)


def test_recompute_gives_the_same_gradients():
    ran = in_one_world(2, under_recompute, CASES, [inputs(case, 2) for case in CASES])
    for case, ranks in zip(CASES, ran, strict=True):
        assert ranks == (True, True), case


def between_two_layers(group, case, transposed, autocast):
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(5, 4), nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        h = embedding(torch.tensor([0, 1, 2, 3]))  # [4, 4]
        y = case.apply(h.T if transposed else h, group)
        linear(y.reshape(-1, 4)).pow(2).sum().backward()
    return [bool(p.grad.any()) for p in (embedding.weight, linear.weight, linear.bias)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_no_path_loses_the_graph(transposed, autocast):
    more = [transposed] * len(EVEN), [autocast] * len(EVEN)
    for case, ranks in zip(EVEN, in_one_world(2, between_two_layers, EVEN, *more), strict=True):
        assert ranks == ([True, True, True],) * 2, case


def routed_to_rank_0(group):
    """Rank 1 receives no row, rank 2 has none to send; all of them reach backward."""
    rank = group.rank()
    rows = [2, 3, 0][rank]
    x = numbers((rows, 2), rank).requires_grad_()
    send, receive = [rows, 0, 0], [2, 3, 0] if rank == 0 else [0, 0, 0]
    expert = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    nn.init.constant_(expert.weight, rank + 1.0)
    y = collectives.all_to_all(
        expert(collectives.all_to_all(x, group, send, receive)), group, receive, send
    )
    y.sum().backward()
    return x.detach(), y.detach(), x.grad, expert.weight.grad


def test_a_rank_without_rows_takes_part_in_backward():
    ranks = run_ranks(routed_to_rank_0, 3)
    for x, y, dx, _ in ranks:
        assert torch.equal(y, x @ torch.ones(2, 2, dtype=torch.float64))
        assert torch.equal(dx, torch.full_like(x, 2))
    everything = torch.cat([x for x, *_ in ranks])
    assert torch.equal(ranks[0][3], everything.sum(0).expand(2, 2))
    for _, _, _, idle in ranks[1:]:
        assert torch.equal(idle, torch.zeros(2, 2, dtype=torch.float64)), "zeros, not None"


def beside_torch(group):
    rank, world = group.rank(), group.size()
    x = numbers((2 * world, 3), rank).requires_grad_()
    send, receive = sizes(rank, world)
    rows = numbers((sum(send), 3), rank).requires_grad_()
    pairs = [
        (x, collectives.all_gather(x, group), functional.all_gather_tensor_autograd(x, 0, group)),
        (
            x,
            collectives.reduce_scatter(x, group),
            functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        ),
        (
            rows,
            collectives.all_to_all(rows, group, send, receive),
            functional.all_to_all_single_autograd(rows, receive, send, group),
        ),
    ]
    equal = []
    for source, ours, theirs in pairs:
        dy = numbers(ours.shape, 50 + rank)
        grads = [torch.autograd.grad(y, source, dy)[0] for y in (ours, theirs)]
        equal.append(torch.equal(ours, theirs) and torch.equal(*grads))
    return equal


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("world", [1, 4])
def test_equals_torchs_own_differentiable_collectives(world):
    assert run_ranks(beside_torch, world) == [[True, True, True]] * world


def in_each_dtype(group, dtype):
    x = torch.arange(8, dtype=dtype).view(4, 2).requires_grad_()
    y = collectives.all_gather(collectives.reduce_scatter(x, group), group)
    z = collectives.all_to_all(collectives.reduce_from(collectives.copy_to(y, group), group), group)
    z.sum().backward()
    return z.dtype == x.grad.dtype == dtype, z.detach().sum().item(), x.grad.flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_pass_through(dtype):
    ranks = run_ranks(in_each_dtype, 2, dtype)
    assert all(kept for kept, _, _ in ranks)
    assert sum(total for _, total, _ in ranks) == 2 * 2 * 2 * 28  # two sums of two, on two ranks
    assert all(set(grad) == {4.0} for *_, grad in ranks)


def empty_tensors(group):
    x = torch.ones(0, 4, dtype=torch.float64, requires_grad=True)
    ys = [case.apply(x, group) for case in EVEN]
    ys.append(collectives.all_to_all(x, group))
    sum(y.sum() for y in ys).backward()
    return [y.numel() for y in ys], tuple(x.grad.shape)


def test_empty_tensors_go_through():
    for numels, shape in run_ranks(empty_tensors, 2):
        assert not any(numels)
        assert shape == (0, 4)


ERRORS = [
    (lambda x, g: collectives.scatter_to(x, g, 1), "dim 1 of size 5 .* 3 ranks"),
    (lambda x, g: collectives.scatter_to(x, g), "dim 1 of size 5 .* 3 ranks"),
    (lambda x, g: collectives.reduce_scatter(x, g), "dim 0 of size 4 .* 3 ranks"),
    (lambda x, g: collectives.all_to_all(x, g), "dim 0 of size 4 .* 3 ranks"),
    (lambda x, g: collectives.all_to_all(x, g, [4], [4]), r"send_sizes \[4\] .* 3 ranks"),
    (lambda x, g: collectives.all_to_all(x, g, [2, 1, 1], [4, 0]), r"receive_sizes \[4, 0\] .* 3"),
    (lambda x, g: collectives.all_to_all(x, g, [2, 3, -1], [4, 0, 0]), r"send_sizes \[2, 3, -1\]"),
    (lambda x, g: collectives.all_to_all(x, g, [1, 1, 1], [4, 0, 0]), "sum to 3, x has 4 rows"),
    (lambda x, g: collectives.all_to_all(x, g, [1, 1, 2]), "both send_sizes and receive_sizes"),
    (lambda x, g: collectives.gather_from(x, g, 2), "dim 2 .* 2 dims"),
    (lambda x, g: collectives.all_gather(x.sum(), g), "dim 0 .* 0 dims"),
    (lambda x, g: collectives.broadcast(x, g, 7), r"root 7 .* \[0, 1, 2\]"),
]


def wrong_call(group, call, match):
    with CommLedger() as ledger, pytest.raises(ValueError, match=match):
        call(torch.ones(4, 5), group)
    return ledger.count()


def test_mistakes_name_both_numbers_on_every_rank_before_anything_is_sent():
    def all_mistakes(group):
        return [wrong_call(group, call, match) for call, match in ERRORS]

    assert run_ranks(all_mistakes, 3) == [[0] * len(ERRORS)] * 3


@pytest.mark.parametrize("name", ["all_reduce", "broadcast"])
def test_calls_without_a_backward_refuse_a_tensor_that_needs_one(name):
    def call(group):
        x = torch.ones(2, requires_grad=True)
        arguments = {"broadcast": (0,)}.get(name, ())
        with torch.no_grad():
            getattr(collectives, name)(x, group, *arguments)
        getattr(collectives, name)(x, group, *arguments)

    with pytest.raises(RankError, match=f"{name} has no backward"):
        run_ranks(call, 1)


def test_a_second_derivative_is_an_error():
    def twice(group):
        x = torch.ones(2, requires_grad=True)
        (dx,) = torch.autograd.grad(
            collectives.copy_to(x, group).pow(3).sum(), x, create_graph=True
        )
        dx.sum().backward()

    with pytest.raises(RankError, match="once_differentiable"):
        run_ranks(twice, 1)
