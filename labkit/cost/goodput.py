"""Failures, checkpoints and goodput: which share of the time makes progress that is kept.

M is the time between failures of the whole world, that of one device over the number of devices.
A run works for an interval τ, then saves. A failure throws away what came after the last complete
save, and costs a restart of R seconds. A save blocks the work for δ seconds; h more seconds of
it may be hidden behind the next interval. If failures come at random (exponential gaps), one kept
interval takes on average

    E(τ) = M·exp((R + h)/M)·(exp((τ + δ)/M) - 1)        goodput = τ / E(τ)

Without h it is the complete model of Daly (2006); it knows of failures in a save and in a restart.
With h a save counts h seconds later, so a failure costs as much as if a restart took R + h. The
best interval depends on neither R nor h:

    Young (1974)   √(2·δ·M)                                              where δ is far below M
    Daly (2006)    √(2·δ·M)·(1 + √(δ/2M)/3 + (δ/2M)/9) - δ;  M from δ = 2·M on

It grows with the root of M. Four times the devices: half the interval, and twice the share lost.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9);
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (3). Llama 3's failures: arXiv 2407.21783, section 3.3.4.
"""

import math
from dataclasses import dataclass

SECONDS_PER_DAY = 86_400
LLAMA3_INTERRUPTIONS = 419  # unexpected ones
LLAMA3_DAYS = 54
LLAMA3_GPUS = 16_384


@dataclass(frozen=True, kw_only=True)
class FailureCosts:
    """How often a run fails, and what it pays for saves and restarts.

    Args:
        between_failures_s: of the whole world, on average; math.inf for a world that never fails.
        save_s: from the start of a save until it counts.
        restart_s: from a failure until work goes on.
        hidden: share of a save behind which work goes on; 0 is a save that blocks throughout.
    """

    between_failures_s: float
    save_s: float
    restart_s: float = 0.0
    hidden: float = 0.0

    def __post_init__(self) -> None:
        check_over_zero("between_failures_s", self.between_failures_s)
        _check_seconds("save_s", self.save_s)
        _check_seconds("restart_s", self.restart_s)
        if not 0 <= self.hidden <= 1:
            raise ValueError(f"hidden is {self.hidden}; it is a share from 0 to 1")

    @property
    def blocking_s(self) -> float:
        """Of each save, what the work waits for."""
        return (1 - self.hidden) * self.save_s

    @property
    def hidden_s(self) -> float:
        """Of each save, what is written while work goes on."""
        return self.hidden * self.save_s


def device_between_failures_s(num_failures: int, run_s: float, num_devices: int) -> float:
    """What a record of failures says of one device: all its device seconds over the failures."""
    check_over_zero("num_failures", num_failures)
    check_over_zero("run_s", run_s)
    check_over_zero("num_devices", num_devices)
    return run_s * num_devices / num_failures


def world_between_failures_s(device_s: float, num_devices: int) -> float:
    """Of a world that stops when any device fails, from the time between failures of one."""
    check_over_zero("device_s", device_s)
    check_over_zero("num_devices", num_devices)
    return device_s / num_devices


def llama3_device_between_failures_s() -> float:
    """Of one GPU of Llama 3's training with all that belongs to it: 5.8 years."""
    run_s = LLAMA3_DAYS * SECONDS_PER_DAY
    return device_between_failures_s(LLAMA3_INTERRUPTIONS, run_s, LLAMA3_GPUS)


def young_interval_s(blocking_s: float, between_failures_s: float) -> float:
    """Work between two saves that loses least, if a save takes far less than a failure to come."""
    _check_seconds("blocking_s", blocking_s)
    check_over_zero("between_failures_s", between_failures_s)
    return math.sqrt(2 * blocking_s * between_failures_s)


def daly_interval_s(blocking_s: float, between_failures_s: float) -> float:
    """Two more terms of the series than Young's; within 2 % of the best for saves up to M / 2."""
    young_s = young_interval_s(blocking_s, between_failures_s)
    ratio = blocking_s / (2 * between_failures_s)
    if ratio >= 1:
        return between_failures_s
    return young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - blocking_s


def expected_goodput(costs: FailureCosts, interval_s: float) -> float:
    """Share of a long run's time that makes kept progress, failures at random.

    Raises:
        ValueError: if the hidden part of a save outlasts the interval that hides it.
    """
    check_over_zero("interval_s", interval_s)
    if costs.hidden_s > interval_s:
        raise ValueError(
            f"{costs.hidden_s:g} s of a save do not hide behind an interval of {interval_s:g} s; "
            "lengthen the interval or hide less"
        )
    cycle_s = interval_s + costs.blocking_s
    if math.isinf(costs.between_failures_s):
        return interval_s / cycle_s
    rate = 1 / costs.between_failures_s
    # τ/E(τ) with falling exponentials only, which cannot overflow.
    survives = math.exp(-rate * (costs.restart_s + costs.hidden_s + cycle_s))
    return interval_s * rate * survives / -math.expm1(-rate * cycle_s)


def check_over_zero(name: str, value: float) -> None:
    """Refuse 0, what is below it, and what is no number."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be over 0")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}; it must be a number of seconds from 0 on")
