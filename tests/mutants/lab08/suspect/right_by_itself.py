"""Gradients add up by themselves."""

import torch
import torch.distributed as dist


def suspect(part, mesh, tokens, targets, num_micro_batches, clip_norm):
    dp, place = mesh.size("dp"), mesh.coordinate("dp")
    parameters = part.parameters()
    batches = [x.chunk(dp)[place].chunk(num_micro_batches) for x in (tokens, targets)]
    loss = part.run(*batches) / dp
    square = torch.zeros_like(loss)
    for name, parameter in part.named_parameters():
        dist.all_reduce(parameter.grad, group=mesh.group("dp"))
        parameter.grad /= dp
        if part.is_cut(name) or mesh.coordinate("tp") == 0:
            square += parameter.grad.square().sum()
    for axis in ("pp", "tp"):
        dist.all_reduce(square, group=mesh.group(axis))
    for axis in ("dp", "pp"):
        dist.all_reduce(loss, group=mesh.group(axis))
    norm = square.sqrt()
    for parameter in parameters:
        parameter.grad *= (clip_norm / norm).clamp(max=1.0)
    part.optimizer.step()
    part.optimizer.zero_grad()
    return loss, norm
