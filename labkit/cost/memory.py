"""What one rank holds in training: parameters, gradients, optimizer state, activations.

A rank of N that share the batch, and of tp that share each matrix, holds of Ψ parameters

| ZeRO stage | parameters | gradients | optimizer state |
| ---------- | ---------- | --------- | --------------- |
| 0          | p·Ψ/tp     | g·Ψ/tp    | o·Ψ/tp          |
| 1          | p·Ψ/tp     | g·Ψ/tp    | o·Ψ/(tp·N)      |
| 2          | p·Ψ/tp     | g·Ψ/(tp·N) | o·Ψ/(tp·N)     |
| 3          | p·Ψ/(tp·N) | g·Ψ/(tp·N) | o·Ψ/(tp·N)     |

with p, g and o bytes a parameter by the precision recipe. These are the bytes between steps. While
a step runs, stage 3 holds the layer at work whole besides, and stage 2 the gradients on their way.
Where ranks share Ψ unevenly, this is the largest share: a count is rounded up.

HSDP shards over the N ranks of a node and replicates over the nodes: `group_size` is N, and the
number of nodes changes nothing here. What it changes is the traffic, see sharding.py.

Figure 1 of the paper, 7.5 billion parameters on N = 64 in mixed precision with Adam: 120, 31.4,
16.6 and 1.9 GB for stages 0, 1, 2 and 3.
Source: ZeRO (arXiv 1910.02054), sections 3 and 5, figure 1. Activations are in activations.py.
"""

from dataclasses import dataclass

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Bytes a parameter, by what they are for."""

    name: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


# AdamW keeps two moments in fp32: 8 bytes. In mixed precision it keeps fp32 weights besides.
FP32 = Recipe(name="fp32", parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8)
MIXED = Recipe(name="mixed", parameter_bytes=2, gradient_bytes=2, optimizer_bytes=12)
# Weights, gradients and moments in fp32, products in bf16: what labkit.train does. The copies of
# the weights in bf16 live from forward to backward; activations.py counts them.
AUTOCAST = Recipe(name="autocast", parameter_bytes=4, gradient_bytes=4, optimizer_bytes=8)
RECIPES = {recipe.name: recipe for recipe in (FP32, MIXED, AUTOCAST)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingMemory:
    """Bytes of one rank, by category."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int

    @property
    def state_bytes(self) -> int:
        """All but the activations: what the batch does not change."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activation_bytes


def training_memory_bytes(
    num_parameters: int,
    *,
    stage: int,
    group_size: int,
    recipe: Recipe = MIXED,
    tp: int = 1,
    activation_bytes: int = 0,
) -> TrainingMemory:
    """Bytes that one rank holds between two steps.

    Args:
        num_parameters: of the whole model, Ψ.
        stage: 0 replicates everything, 1 shards the optimizer state, 2 gradients too, 3 all.
        group_size: ranks that share the states, N: the data-parallel group, or a node's in HSDP.
        recipe: bytes a parameter.
        tp: ranks that share each matrix. Norm gains are whole on each; they are counted as shared.
        activation_bytes: what one rank keeps for backward, from activations.py or measured.

    Raises:
        ValueError: for a stage that does not exist, or a group without ranks.
    """
    if stage not in STAGES:
        raise ValueError(f"ZeRO has stages {STAGES}, got {stage}")
    if group_size < 1 or tp < 1:
        raise ValueError(f"needs at least 1 rank: group_size {group_size}, tp {tp}")
    whole = _share(num_parameters, tp)
    shard = _share(whole, group_size)
    return TrainingMemory(
        parameter_bytes=recipe.parameter_bytes * (shard if stage >= 3 else whole),
        gradient_bytes=recipe.gradient_bytes * (shard if stage >= 2 else whole),
        optimizer_bytes=recipe.optimizer_bytes * (shard if stage >= 1 else whole),
        activation_bytes=activation_bytes,
    )


def ranks_that_fit(
    num_parameters: int,
    *,
    stage: int,
    budget_bytes: float,
    recipe: Recipe = MIXED,
    tp: int = 1,
    activation_bytes: int = 0,
) -> int | None:
    """The smallest group whose ranks each hold at most `budget_bytes`; None if none is enough.

    Activations of a rank stay as they are when ranks are added: each brings its own batch.
    """

    def fits(group_size: int) -> bool:
        memory = training_memory_bytes(
            num_parameters,
            stage=stage,
            group_size=group_size,
            recipe=recipe,
            tp=tp,
            activation_bytes=activation_bytes,
        )
        return memory.total_bytes <= budget_bytes

    if not fits(max(1, num_parameters)):  # one parameter a rank: more ranks cannot help
        return None
    low, high = 1, max(1, num_parameters)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _share(count: int, parts: int) -> int:
    return -(-count // parts)
