"""What one rank holds at a moment of a step: bytes by category, as plain data.

| category    | what it is                                                                  |
| ----------- | --------------------------------------------------------------------------- |
| parameters  | of the module, as they are between steps                                    |
| gradients   | `.grad` at the end of backward, or when the optimizer looks at it           |
| optimizer   | what the optimizer keeps, and what it updates that is no module's parameter |
| activations | what autograd keeps for backward, and what is made again for it             |
| in flight   | the rest: weights gathered for a while, gradients on their way, messages    |
"""

from dataclasses import dataclass

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "in flight")
LASTING = CATEGORIES[:3]  # told by their owner; autograd's use of them changes nothing


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes of one rank at one moment.

    Args:
        phase: "forward", "backward" or "update".
        by_category: bytes, in the order of CATEGORIES.
    """

    phase: str
    by_category: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer state."""
        return sum(self.by_category[category] for category in LASTING)
