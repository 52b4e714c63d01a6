"""A model on dp * pp * tp ranks by a plan: the loss, and the step, of one process.

    plan = Plan(dp=2, pp=2, tp=2, zero=1, num_micro_batches=4)
    mesh = Mesh(dp=2, pp=2, tp=2)
    parallel = parallelize(model, plan, mesh, partial(torch.optim.AdamW, lr=3e-4), clip_norm=1.0)
    for tokens, targets in batches:                          # [B, T], the same on every rank
        loss = parallel.step(tokens, targets)

The layers go to stages (stages.py), their matrices to the ranks of tp, the batch's rows to the
replicas (replicas.py). What a step does is in parallel_model.py.

Cost: a copy of this rank's shards; and each replica takes its values from the first, which is one
broadcast of its parameters over dp.
"""

import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.comm.pieces import Options
from labkit.compose.parallel_model import ParallelModel
from labkit.compose.plan import Plan
from labkit.compose.replicas import Replica, ShardedStates, ShardedWeights, WholeReplica
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
) -> ParallelModel:
    """This rank's part of a model, ready to train; the model itself is left alone.

    Args:
        model: the whole, with the same weights on every rank.
        plan: what to do along each axis.
        mesh: with the plan's sizes; the axes that a plan does not name have size 1.
        make_optimizer: builds an optimizer from parameter groups, one for each chunk; its update
            must be element-wise (labkit/comm/pieces.py).
        clip_norm: largest norm of the whole gradient, or None.
        options: optimizer options of a parameter by its name and shape. The shape is that of this
            rank's tp shard.
        bucket_bytes: limit of a bucket of gradients, in stages 0 to 2 of ZeRO.

    Raises:
        ValueError: on every rank and before anything is sent, if plan, mesh and model do not fit.
    """
    _check_mesh(plan, mesh)
    plan.check_model(model.config)
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm}, it must be over 0")
    weight = model.embed_tokens.weight
    validate(plan.make_schedule(), exchange="batched" if weight.is_cuda else "asynchronous")
    stages, dtype = _stages(model, plan, mesh), weight.dtype
    replicas = [
        _replica(stage, plan, mesh.group("dp"), make_optimizer, options, bucket_bytes)
        for stage in stages
    ]
    return ParallelModel(stages, replicas, plan, mesh, dtype, clip_norm)


def _check_mesh(plan: Plan, mesh: Mesh) -> None:
    for axis, size in mesh.sizes.items():
        wanted = getattr(plan, axis, 1)
        if size != wanted:
            raise ValueError(
                f"the plan has {axis}={wanted}, the mesh has {axis}={size}: a plan of "
                f"{plan.world_size} ranks needs Mesh(dp={plan.dp}, pp={plan.pp}, tp={plan.tp})"
            )


def _stages(model: Transformer, plan: Plan, mesh: Mesh) -> list[ParallelStage]:
    """This rank's stages, by chunk."""
    group, schedule = mesh.group("tp"), plan.make_schedule()
    kv_group = kv_group_of(model.config, group)
    parts = split_layers(model.config.num_layers, plan.num_stages)
    return [
        ParallelStage(
            model,
            parts[schedule.stage(mesh.coordinate("pp"), chunk)],
            group,
            kv_group,
            sequence=plan.sequence_parallel,
            recompute=plan.recompute,
        )
        for chunk in range(plan.chunks)
    ]


def _replica(
    stage: ParallelStage,
    plan: Plan,
    group: dist.ProcessGroup,
    make_optimizer: MakeOptimizer,
    options: Options | None,
    bucket_bytes: int,
) -> Replica:
    """What the stage of ZeRO makes of a stage of the pipeline."""
    if plan.zero == 0:
        return WholeReplica(stage, make_optimizer, group, options, bucket_bytes)
    if plan.zero == 3:
        layers = list(stage.layers.values())
        return ShardedWeights(stage, make_optimizer, group, options, layers)
    return ShardedStates(stage, make_optimizer, group, options, bucket_bytes, stage=plan.zero)
