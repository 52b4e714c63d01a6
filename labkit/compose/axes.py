"""Which ranks hold the same, and which hold other tokens: the axes of a plan, taken together.

| what                        | the ranks that hold the same of it | their axes  |
| --------------------------- | ---------------------------------- | ----------- |
| dense weights, the router   | replicas                           | dp, cp, ep  |
| an expert                   | expert replicas                    | dp, cp      |

The rows of a batch are shared out over dp and ep, the tokens of a row over cp. So the ranks of the
first line are also those that hold other tokens: over them gradients and loads are summed.

Axes of size one are left out, so that a plan without cp and ep talks over dp alone.
"""

from collections.abc import Sequence

from labkit.comm.mesh import Mesh
from labkit.compose.plan import Plan

EXPERTS = ".mlp.experts."  # in the name of every expert's parameter, and of no other


def shard_axes(plan: Plan, name: str) -> tuple[str, ...]:
    """Axes over which ZeRO shards a parameter, by its name."""
    return expert_axes(plan) if EXPERTS in name else data_axes(plan)


def data_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which dense weights are the same and tokens are not."""
    return _longer_than_one(plan, ("dp", "cp", "ep"))


def expert_axes(plan: Plan) -> tuple[str, ...]:
    """Axes along which experts are the same."""
    return _longer_than_one(plan, ("dp", "cp"))


def make_mesh(plan: Plan, ranks: Sequence[int] | None = None) -> Mesh:
    """The mesh of a plan, with the groups over several axes that `parallelize` asks for.

    Args:
        plan: its world size is that of the world.
        ranks: global ranks in the order of the grid; 0, 1, 2, ... unless given.
    """
    wanted = {data_axes(plan), expert_axes(plan)}
    return Mesh(
        dp=plan.dp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        tp=plan.tp,
        joint=sorted(axes for axes in wanted if len(axes) > 1),
        ranks=ranks,
    )


def _longer_than_one(plan: Plan, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if getattr(plan, axis) > 1) or ("dp",)
