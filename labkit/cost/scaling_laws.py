"""Scaling laws: loss from size and text, the best size for a budget, and a fit of one's own runs.

    L(N, D) = E + (A/N^α + B/D^β)^γ       N parameters, D tokens, L in nats a token

| law                | E      | A      | B       | α       | β      | γ     | source              |
| ------------------ | ------ | ------ | ------- | ------- | ------ | ----- | ------------------- |
| KAPLAN             | 0      | Nc^α   | Dc      | 0.076/γ | 1      | 0.103 | 2001.08361, eq. 1.5 |
| CHINCHILLA_PRINTED | 1.69   | 406.4  | 410.7   | 0.34    | 0.28   | 1     | 2203.15556, eq. 10  |
| CHINCHILLA_REFIT   | 1.8172 | 482.01 | 2085.43 | 0.3478  | 0.3658 | 1     | 2404.10102          |

Kaplan's Nc = 6.4e13 and Dc = 1.8e13 are those of its table 2; its N leaves embeddings out. A budget
of C = 6·N·D FLOPs is spent best at

    N = G·(C/6)^(β/(α+β)),  D = (C/6)/N,  G = (α·A / (β·B))^(1/(α+β))

whatever E and γ are. The three do not agree on it: at Chinchilla's 5.76e23 FLOPs the printed
constants ask for 93 tokens a parameter, the refit for 18, and the paper itself trained with 20.
A fit is local: outside of its records' sizes, texts and word lists its numbers mean nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FLOPS_PER_PARAMETER_AND_TOKEN = 6
GOPHER_BUDGET_FLOPS = 5.76e23  # 2203.15556, section 4: Chinchilla was given Gopher's budget
CHINCHILLA_PARAMETERS, CHINCHILLA_TOKENS = 70e9, 1.4e12  # the same, abstract
CHINCHILLA_TOKENS_PER_PARAMETER = CHINCHILLA_TOKENS / CHINCHILLA_PARAMETERS

Record = tuple[float, float, float]  # parameters, tokens, loss


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The size and the text on which a budget is spent best."""

    parameters: float
    tokens: float

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """L = E + (A/N^alpha + B/D^beta)^gamma, with the papers' letters.

    Args:
        E: loss that is left with endless size and text; in the unit of the losses it was fitted to.
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float
    gamma: float = 1.0

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss of a model of `parameters` at the end of a run on `tokens`."""
        terms = self.A / parameters**self.alpha + self.B / tokens**self.beta
        return self.E + terms**self.gamma

    def optimal(self, budget_flops: float) -> Optimum:
        """Least loss under 6·N·D = budget."""
        product = budget_flops / FLOPS_PER_PARAMETER_AND_TOKEN
        both = self.alpha + self.beta
        factor = (self.alpha * self.A / (self.beta * self.B)) ** (1 / both)
        parameters = factor * product ** (self.beta / both)
        return Optimum(parameters=parameters, tokens=product / parameters)


KAPLAN = ScalingLaw(
    E=0.0, A=6.4e13 ** (0.076 / 0.103), B=1.8e13, alpha=0.076 / 0.103, beta=1.0, gamma=0.103
)
CHINCHILLA_PRINTED = ScalingLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
CHINCHILLA_REFIT = ScalingLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)


def optimal_at_ratio(
    budget_flops: float, tokens_per_parameter: float = CHINCHILLA_TOKENS_PER_PARAMETER
) -> Optimum:
    """The rule of thumb: a fixed number of tokens a parameter, Chinchilla's 20 if none is given."""
    product = budget_flops / FLOPS_PER_PARAMETER_AND_TOKEN
    parameters = math.sqrt(product / tokens_per_parameter)
    return Optimum(parameters=parameters, tokens=product / parameters)


def fit(
    records: Sequence[Record],
    *,
    E: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    delta: float = 1e-3,
) -> ScalingLaw:
    """The law with gamma 1 that is nearest to some runs; what is given is kept, the rest is fitted.

    Few records do not pin five numbers: those that share their tokens say nothing of beta, and a
    lower E is made good by lower exponents. So fix what is known from elsewhere, and judge a choice
    by records that were left out, never by the run that is to be predicted.

    For each (E, alpha, beta), which Nelder and Mead's simplex moves, A and B are a linear least
    squares, weighted anew a few times; loss: Huber's on the relative errors.

    Args:
        records: (parameters, tokens, loss), each from the end of a run.
        delta: relative error from which on a record counts linearly, not by its square.

    Raises:
        ValueError: if there are fewer records than numbers to fit, or sizes or tokens are all
            alike, or E is not under every loss.
    """
    given = {"E": E, "alpha": alpha, "beta": beta}
    free = [name for name, value in given.items() if value is None]
    kept = {name: value for name, value in given.items() if value is not None}
    _check(records, E, 2 + len(free))
    least = min(loss for _, _, loss in records)

    def law(point: Sequence[float]) -> ScalingLaw | None:
        values = kept | dict(zip(free, point, strict=True))
        slopes = values["alpha"], values["beta"]
        inside = 0 <= values["E"] < least and all(0.02 <= slope <= 3 for slope in slopes)
        return _with_scales(records, delta, **values) if inside else None

    def cost(point: Sequence[float]) -> float:
        found = law(point)
        return math.inf if found is None else huber_cost(found, records, delta)

    starts = [
        [{"E": share * least, "alpha": slope, "beta": other}[name] for name in free]
        for share in (0.3, 0.7)
        for slope, other in ((0.3, 0.3), (0.5, 0.5), (0.3, 0.8), (0.8, 0.3))
    ]
    best = law(min((_simplex(cost, start) for start in starts), key=cost))
    assert best is not None, "every start lies inside"
    return best


def leave_one_out(records: Sequence[Record], **known: float) -> list[float]:
    """The relative error on each record of a fit to the others: how a choice is judged."""
    errors = []
    for place, (parameters, tokens, loss) in enumerate(records):
        law = fit([*records[:place], *records[place + 1 :]], **known)
        errors.append(law.loss(parameters, tokens) / loss - 1)
    return errors


def huber_cost(law: ScalingLaw, records: Sequence[Record], delta: float = 1e-3) -> float:
    """Sum of Huber's loss on the relative errors of a law."""
    errors = [abs(law.loss(n, d) / loss - 1) for n, d, loss in records]
    return sum(e * e / 2 if e <= delta else delta * (e - delta / 2) for e in errors)


def _check(records: Sequence[Record], E: float | None, unknown: int) -> None:
    if len(records) < unknown:
        raise ValueError(
            f"{len(records)} records for {unknown} numbers; add records or fix E, alpha or beta"
        )
    for what, place in (("parameters", 0), ("tokens", 1)):
        values = {record[place] for record in records}
        if len(values) < 2:
            raise ValueError(f"all {len(records)} records have {values.pop():,} {what}; vary them")
    least = min(loss for _, _, loss in records)
    if E is not None and not 0 <= E < least:
        raise ValueError(f"E is {E}, but a record has a loss of {least}; E must lie under it")


def _with_scales(
    records: Sequence[Record], delta: float, *, E: float, alpha: float, beta: float
) -> ScalingLaw:
    """The best A and B for the rest: least squares, errors above delta weighted down, 8 times."""
    rows = [((n**-alpha) / loss, (d**-beta) / loss, 1 - E / loss) for n, d, loss in records]
    weights = [1.0] * len(rows)
    A = B = 0.0
    for _ in range(8):
        A, B = _two_unknowns(rows, weights)
        errors = [abs(A * x + B * y - z) for x, y, z in rows]
        weights = [1.0 if e <= delta else delta / e for e in errors]
    return ScalingLaw(E=E, A=A, B=B, alpha=alpha, beta=beta)


def _two_unknowns(
    rows: Sequence[tuple[float, float, float]], weights: Sequence[float]
) -> tuple[float, float]:
    """A, B ≥ 0 with A·x + B·y nearest to z, by the normal equations."""
    pairs = list(zip(weights, rows, strict=True))
    xx, xy, yy = (sum(w * r[i] * r[j] for w, r in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))
    xz, yz = (sum(w * r[i] * r[2] for w, r in pairs) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 1e-12 * xx * yy:
        A, B = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
        if A >= 0 and B >= 0:
            return A, B
    # One of them is 0: the one that explains less.
    return (xz / xx, 0.0) if xz * xz * yy > yz * yz * xx else (0.0, yz / yy)


def _simplex(cost: Callable[[Sequence[float]], float], start: list[float]) -> list[float]:
    """Nelder and Mead's search (1965) from one start; `cost` is inf outside of its domain."""
    size = len(start)
    if not size:
        return start
    points = [start] + [
        [value * (1.15 if i == j else 1) for j, value in enumerate(start)] for i in range(size)
    ]
    scored = sorted((cost(point), point) for point in points)
    for _ in range(120 * size):
        if scored[-1][0] - scored[0][0] <= 1e-13:
            break
        centre = [sum(p[j] for _, p in scored[:-1]) / size for j in range(size)]
        scored = sorted(_moved(cost, scored, centre))
    return scored[0][1]


def _moved(
    cost: Callable[[Sequence[float]], float],
    scored: list[tuple[float, list[float]]],
    centre: Sequence[float],
) -> list[tuple[float, list[float]]]:
    """The simplex with its worst corner reflected, stretched or drawn in, or all of it shrunk."""

    def at(step: float) -> tuple[float, list[float]]:
        worst = scored[-1][1]
        point = [c + step * (c - w) for c, w in zip(centre, worst, strict=True)]
        return cost(point), point

    mirrored = at(1.0)
    if mirrored[0] < scored[0][0]:
        return [*scored[:-1], min(mirrored, at(2.0))]
    if mirrored[0] < scored[-2][0]:
        return [*scored[:-1], mirrored]
    drawn = at(0.5 if mirrored[0] < scored[-1][0] else -0.5)
    if drawn[0] < scored[-1][0]:
        return [*scored[:-1], drawn]
    best = scored[0][1]
    halves = [[(a + b) / 2 for a, b in zip(best, p, strict=True)] for _, p in scored[1:]]
    return [scored[0], *((cost(point), point) for point in halves)]
