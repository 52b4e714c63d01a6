"""A model on dp * pp * cp * ep * tp ranks by a plan: the loss, and the step, of one process.

    plan = Plan(dp=2, pp=2, tp=2, zero=1, num_micro_batches=4)
    mesh = make_mesh(plan)
    parallel = parallelize(model, plan, mesh, partial(torch.optim.AdamW, lr=3e-4), clip_norm=1.0)
    for tokens, targets in batches:                          # [B, T], the same on every rank
        loss = parallel.step(tokens, targets)

The layers go to stages (stages.py), their matrices to the ranks of tp, experts to those of ep, the
batch's rows to dp and ep, the tokens of a row to cp (replicas.py). What a step does is in
parallel_model.py.

Cost: a copy of this rank's shards; and each replica takes its values from the first, which is one
broadcast of its parameters.
"""

from labkit.comm.mesh import Mesh
from labkit.comm.pieces import Options
from labkit.compose.axes import data_axes, expert_axes
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.plan import Plan
from labkit.compose.sharers import Sharers
from labkit.compose.stages import ParallelStage
from labkit.compose.tensor_parallel import kv_group_of
from labkit.model.transformer import Transformer
from labkit.parallel.pipeline import split_layers, validate
from labkit.parallel.zero import MIB, MakeOptimizer


def parallelize(
    model: Transformer,
    plan: Plan,
    mesh: Mesh,
    make_optimizer: MakeOptimizer,
    *,
    clip_norm: float | None = None,
    options: Options | None = None,
    bucket_bytes: int = 4 * MIB,
    balancing_rate: float = 0.0,
) -> ParallelModel:
    """This rank's part of a model, ready to train; the model itself is left alone.

    Args:
        model: the whole, with the same weights on every rank.
        plan: what to do along each axis.
        mesh: `make_mesh(plan)`, or any with the plan's sizes and its joint groups.
        make_optimizer: builds an optimizer from parameter groups, one for each chunk; its update
            must be element-wise (labkit/comm/pieces.py).
        clip_norm: largest norm of the whole gradient, or None.
        options: optimizer options of a parameter by its name and shape. The shape is that of this
            rank's tp shard.
        bucket_bytes: limit of a bucket of gradients, in stages 0 to 2 of ZeRO.
        balancing_rate: how far a step moves the routers' bias, in a model that balances its
            experts.

    Raises:
        ValueError: on every rank and before anything is sent, if plan, mesh and model do not fit.
    """
    _check_mesh(plan, mesh)
    plan.check_model(model.config)
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm}, it must be over 0")
    if balancing_rate < 0:
        raise ValueError(f"balancing_rate is {balancing_rate}, it must be at least 0")
    if balancing_rate and not model.config.balancing:
        raise ValueError(
            f"balancing_rate is {balancing_rate}, but the model does not balance its experts: use "
            "0, or a ModelConfig with balancing=True"
        )
    weight = model.embed_tokens.weight
    validate(plan.make_schedule(), exchange="batched" if weight.is_cuda else "asynchronous")
    stages, dtype = _stages(model, plan, mesh), weight.dtype
    sharers = Sharers(
        plan=plan,
        mesh=mesh,
        make_optimizer=make_optimizer,
        options=options,
        bucket_bytes=bucket_bytes,
    )
    replicas = [sharers.replica(stage) for stage in stages]
    return ParallelModel(stages, replicas, plan, mesh, dtype, clip_norm, balancing_rate)


def _check_mesh(plan: Plan, mesh: Mesh) -> None:
    for axis, size in mesh.sizes.items():
        wanted = getattr(plan, axis)
        if size != wanted:
            sizes = ", ".join(f"{name}={getattr(plan, name)}" for name in mesh.sizes)
            raise ValueError(
                f"the plan has {axis}={wanted}, the mesh has {axis}={size}: a plan of "
                f"{plan.world_size} ranks needs Mesh({sizes})"
            )
    for axes in (data_axes(plan), expert_axes(plan)):
        mesh.group(*axes)  # or it says what is missing


def _stages(model: Transformer, plan: Plan, mesh: Mesh) -> list[ParallelStage]:
    """This rank's stages, by chunk."""
    schedule, kv_group = plan.make_schedule(), kv_group_of(model.config, mesh.group("tp"))
    parts = split_layers(model.config.num_layers, plan.num_stages)
    return [
        ParallelStage(
            model, parts[schedule.stage(mesh.coordinate("pp"), chunk)], mesh, kv_group, plan
        )
        for chunk in range(plan.chunks)
    ]
