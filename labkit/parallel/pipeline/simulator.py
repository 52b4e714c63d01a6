"""When every action of a schedule would run: a schedule and its durations in, a timeline out.

Each rank runs its actions in order; an action starts as soon as its rank is free and its input is
there. A result reaches another rank `message_s` after it is ready, and messages do not queue, so a
rank never waits for a send. Chunks are alike, and so are ranks.

Two definitions of the bubble are in use. With T the time of the step and T₀ = m·v·(t_F + t_B) the
time that a rank works,

    over ideal time   (T − T₀) / T₀       GPipe, 1F1B: (p − 1)/m
    over the step     (T − T₀) / T        GPipe, 1F1B: (p − 1)/(m + p − 1)

T is the longest of the ranks' times from first action to last. Where rank 0 is first to start and
last to end, that is the makespan. In ZB-V rank r starts r forwards later and ends later; if the
next step follows at once, it idles at neither end.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, for T;
Narayanan et al. 2021, arXiv 2104.04473, section 2.2, for the bubble over ideal time.
"""

from dataclasses import dataclass

from labkit.parallel.pipeline.actions import Action, Result, Schedule
from labkit.parallel.pipeline.validator import fault


@dataclass(frozen=True, slots=True)
class Span:
    """One action and when it ran."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineTimeline:
    """Every rank's spans, in order, and what they add up to."""

    schedule: Schedule
    ranks: tuple[tuple[Span, ...], ...]
    peak_stash: tuple[int, ...]

    @property
    def makespan_s(self) -> float:
        """From the first action of any rank to the last of any."""
        return max(spans[-1].end_s for spans in self.ranks)

    @property
    def step_s(self) -> float:
        """The longest of the ranks' times from first action to last."""
        return max(spans[-1].end_s - spans[0].start_s for spans in self.ranks)

    @property
    def ideal_s(self) -> float:
        """The longest of the ranks' working times."""
        return max(sum(span.end_s - span.start_s for span in spans) for spans in self.ranks)

    @property
    def bubble_over_ideal(self) -> float:
        return (self.step_s - self.ideal_s) / self.ideal_s

    @property
    def bubble_over_step(self) -> float:
        return (self.step_s - self.ideal_s) / self.step_s

    def idle_s(self, rank: int) -> float:
        """What a rank idles between its first action and its last."""
        spans = self.ranks[rank]
        return spans[-1].end_s - spans[0].start_s - sum(span.end_s - span.start_s for span in spans)


def simulate_schedule(
    schedule: Schedule,
    *,
    forward_s: float = 1,
    backward_s: float = 2,
    input_s: float = 1,
    weight_s: float = 1,
    message_s: float = 0,
) -> PipelineTimeline:
    """Run a schedule in virtual time.

    Args:
        schedule: what each rank does.
        forward_s: seconds of an F: one micro-batch, one stage.
        backward_s: seconds of a B.
        input_s: seconds of an I; an I and a W often take as long as a B.
        weight_s: seconds of a W.
        message_s: seconds from a result's being ready to its arrival on another rank.

    Raises:
        ValueError: a duration is negative, or an action waits for something that never comes.
    """
    durations_s = {"F": forward_s, "B": backward_s, "I": input_s, "W": weight_s}
    refuse_senseless(schedule, durations_s | {"message": message_s})
    ranks = run(schedule, durations_s, message_s)
    return PipelineTimeline(
        schedule=schedule,
        ranks=tuple(map(tuple, ranks)),
        peak_stash=tuple(map(schedule.peak_stash, range(schedule.num_ranks))),
    )


def refuse_senseless(schedule: Schedule, durations_s: dict[str, float]) -> None:
    if min(durations_s.values()) < 0:
        raise ValueError(f"durations must not be negative, got {durations_s} seconds")
    idle = [rank for rank, actions in enumerate(schedule.ranks) if not actions]
    if idle or not schedule.ranks:
        raise ValueError(f"{schedule.name}: {schedule.num_ranks} ranks, no actions on ranks {idle}")


def run(schedule: Schedule, durations_s: dict[str, float], message_s: float) -> list[list[Span]]:
    """Every rank as far as it gets, again and again, until all have ended or none gets on."""
    ranks: list[list[Span]] = [[] for _ in schedule.ranks]
    ready_s: dict[Result, float] = {}
    waiting: dict[Result, list[int]] = {}
    owner = [schedule.rank_of(stage) for stage in range(schedule.num_stages)]
    runnable = list(range(schedule.num_ranks))
    while runnable:
        rank = runnable.pop()
        actions, spans = schedule.ranks[rank], ranks[rank]
        while len(spans) < len(actions):
            action = actions[len(spans)]
            inputs = schedule.inputs(rank, action)
            missing = next((needed for needed in inputs if needed not in ready_s), None)
            if missing:
                waiting.setdefault(missing, []).append(rank)
                break
            start_s = spans[-1].end_s if spans else 0
            for needed in inputs:
                on_its_way_s = message_s if owner[needed[1]] != rank else 0
                start_s = max(start_s, ready_s[needed] + on_its_way_s)
            spans.append(Span(action, start_s, start_s + durations_s[action.kind]))
            result = schedule.result(rank, action)
            if result:
                ready_s[result] = spans[-1].end_s
                runnable += waiting.pop(result, [])
    if waiting:
        raise ValueError(f"{schedule.name}: {fault(schedule, 'asynchronous')}")
    return ranks
