"""Loss scaling: training in fp16, whose smallest number above zero is 6e-8.

    loss · scale  →  backward  →  gradients / scale  →  clip  →  optimizer step

Small gradients of activations would be rounded to zero in fp16; multiplied by the scale they are
not. A scale that is too large overflows instead, and an inf or NaN shows it: that step is skipped
and the scale halved. After `growth_interval` good steps in a row it is doubled. So it stays just
under the largest that fits. A power of two changes no digit of a number that it does not overflow.

One decision for all ranks: where one skips and another does not, their weights differ from then on.
Before gradients are summed over ranks each rank sees its own, after it all see the same; with
shards each rank sees a part. Given a group, one all-reduce of 4 bytes makes it common.

bf16 has the exponents of fp32 and needs none of this.
Source: Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, section 3.2.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce


class LossScaler:
    """The scale, and what moves it.

        scaler.scaled(loss).backward()
        finite = scaler.unscale(model.parameters())
        if finite: clip, optimizer step
        scaler.update(finite)

    Args:
        scale: to start with.
        growth_interval: good steps in a row before the scale is doubled.
        group: ranks that decide together; None for one process.

    Raises:
        ValueError: for a scale or an interval that is not positive.
    """

    def __init__(
        self,
        *,
        scale: float = 2.0**16,
        growth_interval: int = 2000,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if scale <= 0 or growth_interval < 1:
            raise ValueError(f"scale {scale} and growth_interval {growth_interval} must be above 0")
        self.scale = scale
        self.growth_interval = growth_interval
        self.group = group
        self.good_steps = 0  # since the scale last changed
        self.num_skipped = 0

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        return loss * self.scale

    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide every gradient by the scale, in place.

        Returns:
            Whether all gradients are finite, on all ranks of the group.
        """
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        finite = all(bool(grad.isfinite().all()) for grad in grads)
        for grad in grads:
            grad.div_(self.scale)
        return finite if self.group is None else self._agreed(finite, grads)

    def update(self, finite: bool) -> None:
        """Move the scale after a step that was taken, or skipped because it was not finite."""
        if not finite:
            self.scale, self.good_steps = self.scale / 2, 0
            self.num_skipped += 1
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2, 0

    def state(self) -> dict[str, float]:
        """What a run must keep to go on as if it had not been stopped."""
        return {
            "scale": self.scale,
            "good_steps": self.good_steps,
            "num_skipped": self.num_skipped,
        }

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from `state()`."""
        self.scale = float(state["scale"])
        self.good_steps = int(state["good_steps"])
        self.num_skipped = int(state["num_skipped"])

    def _agreed(self, finite: bool, grads: list[torch.Tensor]) -> bool:
        """Whether no rank overflowed; every rank of the group asks, one without gradients too."""
        assert self.group is not None, "unscale() asks only where there is a group"
        device = grads[0].device if grads else None
        overflows = torch.tensor(float(not finite), device=device)
        return int(all_reduce(overflows, self.group)) == 0
