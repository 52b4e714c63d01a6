"""Published laws give the published ratios; the fit finds laws that it is shown, noise or not.

Oracle: the closed optimum against a search over sizes; records made from known laws.
"""

import math
import random

import pytest

from labkit.cost.scaling_laws import (
    CHINCHILLA_PARAMETERS,
    CHINCHILLA_PRINTED,
    CHINCHILLA_REFIT,
    CHINCHILLA_TOKENS,
    GOPHER_BUDGET_FLOPS,
    KAPLAN,
    ScalingLaw,
    fit,
    huber_cost,
    optimal_at_ratio,
)

TRUTH = ScalingLaw(E=1.2, A=60, B=300, alpha=0.4, beta=0.45)
POINTS = (
    *((23_264, 3_276_800), (74_352, 3_276_800), (185_472, 819_200), (185_472, 3_276_800)),
    *((394_848, 1_638_400), (924_288, 819_200), (924_288, 1_638_400), (1_662_880, 819_200)),
)
RECORDS = [(n, d, TRUTH.loss(n, d)) for n, d in POINTS]
MINI = (5_640_448, 3_276_800)


@pytest.mark.parametrize(("law", "ratio"), [(CHINCHILLA_PRINTED, 93), (CHINCHILLA_REFIT, 18)])
def test_tokens_a_parameter_at_chinchillas_budget(law, ratio):
    assert round(law.optimal(GOPHER_BUDGET_FLOPS).tokens_per_parameter) == ratio


def test_the_papers_own_rule_is_chinchilla_itself():
    best = optimal_at_ratio(GOPHER_BUDGET_FLOPS)
    assert best.tokens_per_parameter == pytest.approx(20)
    assert best.parameters == pytest.approx(CHINCHILLA_PARAMETERS, rel=0.02)
    assert best.tokens == pytest.approx(CHINCHILLA_TOKENS, rel=0.02)


@pytest.mark.parametrize("law", [KAPLAN, CHINCHILLA_PRINTED, CHINCHILLA_REFIT, TRUTH])
@pytest.mark.parametrize("budget", [1e14, 5.76e23])
def test_no_other_split_of_the_budget_is_better(law, budget):
    best = law.optimal(budget)
    assert 6 * best.parameters * best.tokens == pytest.approx(budget)
    least = law.loss(best.parameters, best.tokens)
    for step in (-0.3, -0.01, 0.01, 0.3):
        other = best.parameters * math.exp(step)
        assert law.loss(other, budget / 6 / other) > least


def test_kaplans_law_as_it_is_printed():
    """Equation 1.5 of arXiv 2001.08361, with the numbers of its table 2."""
    n, d = 1.5e9, 2.2e10
    printed = ((6.4e13 / n) ** (0.076 / 0.103) + 1.8e13 / d) ** 0.103
    assert KAPLAN.loss(n, d) == pytest.approx(printed, rel=1e-12)


def test_more_of_either_is_never_worse_and_ends_at_the_floor():
    assert TRUTH.loss(1e6, 1e9) < TRUTH.loss(1e5, 1e9) < TRUTH.loss(1e5, 1e8)
    assert TRUTH.loss(1e60, 1e60) == pytest.approx(TRUTH.E)


@pytest.mark.parametrize(
    "known", [{}, {"E": 1.2}, {"alpha": 0.4, "beta": 0.45}, {"E": 1.2, "alpha": 0.4, "beta": 0.45}]
)
def test_a_law_is_found_from_its_own_records(known):
    found = fit(RECORDS, **known)
    assert huber_cost(found, RECORDS) < 1e-11
    assert found.loss(*MINI) == pytest.approx(TRUTH.loss(*MINI), rel=1e-4)
    assert all(getattr(found, name) == value for name, value in known.items())


def test_one_wrong_record_of_eight_does_not_move_the_rest():
    wrong = list(RECORDS)
    wrong[4] = (*wrong[4][:2], 1.2 * wrong[4][2])
    found = fit(wrong, alpha=0.4, beta=0.45)
    assert found.loss(*MINI) == pytest.approx(TRUTH.loss(*MINI), rel=0.005)
    square = fit(wrong, alpha=0.4, beta=0.45, delta=10)  # least squares: no weight is taken off
    assert abs(square.loss(*MINI) / TRUTH.loss(*MINI) - 1) > 0.01


def test_half_a_percent_of_noise_moves_the_prediction_by_little():
    draw = random.Random(0)
    noisy = [(n, d, loss * (1 + draw.gauss(0, 0.005))) for n, d, loss in RECORDS]
    found = fit(noisy, alpha=0.4, beta=0.45)
    assert found.loss(*MINI) == pytest.approx(TRUTH.loss(*MINI), rel=0.03)


def test_too_few_records():
    with pytest.raises(ValueError, match="4 records for 5 numbers"):
        fit(RECORDS[:4])
    assert fit(RECORDS[:4], E=1.2).E == 1.2


def test_records_of_one_size_or_one_length():
    with pytest.raises(ValueError, match=r"all 5 records have 819,200 tokens"):
        fit([(n, 819_200, loss) for n, _, loss in RECORDS[:5]])
    with pytest.raises(ValueError, match=r"all 5 records have 7 parameters"):
        fit([(7, d, loss) for _, d, loss in RECORDS[:5]])


def test_a_floor_above_a_loss():
    with pytest.raises(ValueError, match=r"E is 9, but a record has a loss of"):
        fit(RECORDS, E=9)
