"""A model, a batch and a cluster in lab 08: what a planner may ask.

    job.memory_bytes(dp, pp, tp, m)      of the fullest rank, against job.budget_bytes
    job.step_s(dp, pp, tp, m)            seconds of one step

Prices are the planner's own (labkit/cost): 1F1B, ZeRO 1 along dp, nothing runs again, sequences of
one micro-batch as many as are left: batch / (dp · m).
"""

from dataclasses import dataclass
from functools import cached_property

from labkit.cost.architecture import Architecture
from labkit.cost.cluster import Cluster
from labkit.cost.fullest_rank import FullestRank
from labkit.cost.layout import Layout
from labkit.cost.memory import MIXED
from labkit.cost.planner import USABLE
from labkit.cost.step_time import step_time


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What is to be trained, and on what.

    Args:
        num_devices: all of them are used.
        batch_size: sequences in a step, over all ranks.
        seq_len: tokens of a sequence.
    """

    architecture: Architecture
    cluster: Cluster
    num_devices: int
    batch_size: int
    seq_len: int

    def __str__(self) -> str:
        each = self.cluster
        gigabytes = each.device.memory_bytes / 10**9
        return (
            f"{self.num_layers} layers of {self.num_heads} heads, batch {self.batch_size}, on "
            f"{self.num_devices} devices of {gigabytes:.3g} GB, {each.devices_per_node} a node"
        )

    @property
    def num_layers(self) -> int:
        return self.architecture.num_layers

    @property
    def num_heads(self) -> int:
        return self.architecture.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.architecture.num_kv_heads

    @property
    def num_hidden_units(self) -> int:
        """Of the MLP in each layer."""
        return self.architecture.intermediate_size

    @property
    def budget_bytes(self) -> int:
        """Of a device's memory, what a layout may fill."""
        return int(USABLE * self.cluster.device.memory_bytes)

    def memory_bytes(self, dp: int, pp: int, tp: int, m: int) -> int:
        """What the fullest rank needs.

        Raises:
            ValueError: if there is no such layout, with the reason.
        """
        memory, working_bytes = self._fullest.memory(self._layout(dp, pp, tp, m))
        return memory.total_bytes + working_bytes

    def step_s(self, dp: int, pp: int, tp: int, m: int) -> float:
        """Seconds of one step.

        Raises:
            ValueError: if there is no such layout, with the reason.
        """
        layout = self._layout(dp, pp, tp, m)
        return step_time(self.architecture, layout, self.cluster, self.seq_len).total_s

    @cached_property
    def _fullest(self) -> FullestRank:
        return FullestRank(self.architecture, seq_len=self.seq_len, recipe=MIXED)

    def _layout(self, dp: int, pp: int, tp: int, m: int) -> Layout:
        if dp * pp * tp != self.num_devices:
            raise ValueError(
                f"dp={dp} x pp={pp} x tp={tp} is {dp * pp * tp} ranks, there are {self.num_devices}"
            )
        if m < 1 or self.batch_size % (dp * m):
            raise ValueError(
                f"a batch of {self.batch_size} does not divide over dp={dp} and m={m} micro-batches"
            )
        size = self.batch_size // (dp * m)
        layout = Layout(
            dp=dp,
            pp=pp,
            tp=tp,
            zero=1 if dp > 1 else 0,
            micro_batch_size=size,
            num_micro_batches=m,
        )
        layout.check(self.architecture, self.seq_len)
        return layout
