"""Costs of collectives: closed forms against schedules counted step by step.

Oracles: a list of the messages that a ring or tree really sends; bisection for the crossover; brute
force for the best number of chunks. Tolerance 1e-12 relative: a handful of float operations.
"""

from fractions import Fraction

import pytest

from labkit.cost import collectives as cost

ALPHA, BETA = 3e-6, 2e-10
SIZES = [1, 2, 3, 4, 5, 8, 13, 64]


def close(value):
    return pytest.approx(value, rel=1e-12)


def ring_all_reduce_messages(chunks, rank):
    """What one rank of a ring sends, step by step, so that it ends owning chunk `rank`."""
    size = len(chunks)
    reduce_scatter = [chunks[(rank - step - 1) % size] for step in range(size - 1)]
    all_gather = [chunks[(rank - step) % size] for step in range(size - 1)]
    return reduce_scatter + all_gather


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_takes_two_rounds_less_two_of_equal_messages(size):
    payload = 1000 * size
    steps = ring_all_reduce_messages([1000] * size, 0)
    expected = sum(cost.message_time_s(each, ALPHA, BETA) for each in steps)
    assert cost.ring_all_reduce_time_s(payload, size, ALPHA, BETA) == close(expected)
    halves = cost.ring_reduce_scatter_time_s(payload, size, ALPHA, BETA)
    halves += cost.ring_all_gather_time_s(payload / size, size, ALPHA, BETA)
    assert halves == close(expected)


@pytest.mark.parametrize("length", [0, 1, 3, 41, 64])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_a_ring_sends_the_payload_twice_less_two_chunks(size, length):
    chunks = [4 * (length // size + (rank < length % size)) for rank in range(size)]
    sent = [cost.ring_all_reduce_bytes_sent(chunks, rank) for rank in range(size)]
    assert sent == [sum(ring_all_reduce_messages(chunks, rank)) for rank in range(size)]
    assert sum(sent) == 2 * (size - 1) * 4 * length


def test_bytes_by_convention_are_exact_fractions():
    assert cost.all_reduce_bytes_sent(10, 4) == 15
    assert cost.all_reduce_bytes_sent(10, 3) == Fraction(40, 3)
    assert cost.reduce_scatter_bytes_sent(10, 3) == Fraction(20, 3)
    assert cost.all_gather_bytes_sent(10, 3) == 20
    assert cost.all_to_all_bytes_sent(10, 3) == 7
    assert cost.root_bytes_sent(10, 4) == cost.root_bytes_received(10, 4) == 30
    parts = cost.reduce_scatter_bytes_sent(30, 3) + cost.all_gather_bytes_sent(10, 3)
    assert parts == cost.all_reduce_bytes_sent(30, 3)


@pytest.mark.parametrize(
    ("size", "depth"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)]
)
def test_a_tree_reaches_everybody_when_the_reached_double(size, depth):
    reached = 1
    for _ in range(depth):
        assert reached < size
        reached *= 2
    assert reached >= size
    assert cost.tree_depth(size) == depth
    step_s = ALPHA + 500 * BETA
    assert cost.tree_broadcast_time_s(500, size, ALPHA, BETA) == close(depth * step_s)
    assert cost.tree_all_reduce_time_s(500, size, ALPHA, BETA) == close(2 * depth * step_s)


def test_gathering_up_a_tree_brings_every_piece_over_the_last_link_once():
    # Eight ranks: the root receives 1, 2 and 4 pieces in three steps.
    expected = 3 * ALPHA + (1 + 2 + 4) * 500 * BETA
    assert cost.tree_gather_time_s(500, 8, ALPHA, BETA) == close(expected)


def test_an_all_to_all_exchanges_a_share_with_each_peer():
    expected = sum(cost.message_time_s(800 / 4, ALPHA, BETA) for _ in range(3))
    assert cost.pairwise_all_to_all_time_s(800, 4, ALPHA, BETA) == close(expected)


def test_halving_and_doubling_sends_halves_quarters_eighths():
    payload = 8000
    steps = [payload / 2, payload / 4, payload / 8] * 2
    expected = sum(cost.message_time_s(each, ALPHA, BETA) for each in steps)
    assert cost.halving_doubling_all_reduce_time_s(payload, 8, ALPHA, BETA) == close(expected)
    folded = expected + 2 * cost.message_time_s(payload, ALPHA, BETA)
    assert cost.halving_doubling_all_reduce_time_s(payload, 11, ALPHA, BETA) == close(folded)


@pytest.mark.parametrize("size", [2, 3, 4, 16, 1000])
@pytest.mark.parametrize("payload", [0, 1e3, 1e6, 1e8])
def test_the_best_number_of_chunks_is_found_without_trying_all(size, payload):
    def time_s(num_chunks):
        return cost.double_tree_broadcast_time_s(payload, size, ALPHA, BETA, num_chunks)

    best = min(time_s(num_chunks) for num_chunks in range(1, 600))
    assert time_s(cost.double_tree_best_chunks(payload, size, ALPHA, BETA)) == close(best)


def test_a_double_tree_uses_the_full_link_and_few_steps():
    size, payload = 1024, 1e10
    num_chunks = cost.double_tree_best_chunks(payload, size, ALPHA, BETA)
    one_way = cost.double_tree_broadcast_time_s(payload, size, ALPHA, BETA, num_chunks)
    assert payload * BETA < one_way < 1.05 * payload * BETA
    # Sanders et al. 2009: the optimum over real k is 2hα + S·β + √(8hα·S·β), less the pipe's fill.
    fill = 9
    ideal = 2 * fill * ALPHA + payload * BETA + (8 * fill * ALPHA * payload * BETA) ** 0.5
    assert one_way == pytest.approx(ideal, rel=1e-6)
    short = 2 * cost.double_tree_broadcast_time_s(64, size, ALPHA, BETA, 1)
    assert short < cost.ring_all_reduce_time_s(64, size, ALPHA, BETA) / 40


def test_two_levels_equal_their_three_parts():
    payload, per_node, nodes, fast, slow = 96000, 4, 3, (1e-6, 1e-11), (1e-5, 1e-9)
    expected = (
        cost.ring_reduce_scatter_time_s(payload, per_node, *fast)
        + cost.ring_all_reduce_time_s(payload / per_node, nodes, *slow)
        + cost.ring_all_gather_time_s(payload / per_node, per_node, *fast)
    )
    got = cost.hierarchical_all_reduce_time_s(
        payload,
        ranks_per_node=per_node,
        num_nodes=nodes,
        intra_alpha_s=fast[0],
        intra_beta_s_per_byte=fast[1],
        inter_alpha_s=slow[0],
        inter_beta_s_per_byte=slow[1],
    )
    assert got == close(expected)
    assert got < cost.ring_all_reduce_time_s(payload, per_node * nodes, *slow)


def test_the_switch_halves_a_long_ring():
    payload = 1e12
    ring = cost.ring_all_reduce_time_s(payload, 1024, ALPHA, BETA)
    assert cost.in_switch_all_reduce_time_s(payload, ALPHA, BETA) == pytest.approx(
        ring / 2, rel=2e-3
    )


@pytest.mark.parametrize("size", [4, 5, 8, 13, 64, 1000])
def test_ring_and_tree_cross_where_bisection_says(size):
    def ring_is_slower(payload):
        ring = cost.ring_all_reduce_time_s(payload, size, ALPHA, BETA)
        return ring > cost.tree_all_reduce_time_s(payload, size, ALPHA, BETA)

    low, high = 0.0, 1e12
    assert ring_is_slower(low)
    assert not ring_is_slower(high)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if ring_is_slower(middle) else (low, middle)
    crossover = cost.ring_tree_crossover_bytes(size, ALPHA, BETA)
    assert crossover == pytest.approx(low, rel=1e-9)  # bisection compares rounded times


def test_without_latency_no_number_of_chunks_is_best():
    with pytest.raises(ValueError, match=r"alpha_s > 0, got 0\.0"):
        cost.double_tree_best_chunks(1e6, 8, 0.0, BETA)


def test_up_to_three_ranks_the_ring_never_loses():
    assert cost.ring_tree_crossover_bytes(2, ALPHA, BETA) == 0
    assert cost.ring_tree_crossover_bytes(3, ALPHA, BETA) == 0
    with pytest.raises(ValueError, match="from 2 ranks on, got 1"):
        cost.ring_tree_crossover_bytes(1, ALPHA, BETA)


def test_a_group_of_one_takes_no_time():
    alone = (1000, 1, ALPHA, BETA)
    for formula in (
        cost.ring_reduce_scatter_time_s,
        cost.ring_all_gather_time_s,
        cost.ring_all_reduce_time_s,
        cost.pairwise_all_to_all_time_s,
        cost.tree_broadcast_time_s,
        cost.tree_gather_time_s,
        cost.tree_all_reduce_time_s,
        cost.halving_doubling_all_reduce_time_s,
    ):
        assert formula(*alone) == 0
    assert cost.double_tree_broadcast_time_s(*alone, 7) == 0
    assert cost.double_tree_best_chunks(*alone) == 1
