"""expect: lab08.train_step.norm_tp

Each rank of tp counts the gains.
"""

import torch
import torch.distributed as dist


def train_step(part, mesh, tokens, targets, num_micro_batches, clip_norm):
    dp = mesh.size("dp")
    own = [x.chunk(dp)[mesh.coordinate("dp")] for x in (tokens, targets)]
    loss = part.run(*(x.chunk(num_micro_batches) for x in own)) / dp
    square = torch.zeros_like(loss)
    for parameter in part.parameters():
        dist.all_reduce(parameter.grad, group=mesh.group("dp"))
        parameter.grad /= dp
        square += parameter.grad.square().sum()
    for number, axes in ((loss, ("dp", "pp")), (square, ("pp", "tp"))):
        for axis in axes:
            dist.all_reduce(number, group=mesh.group(axis))
    norm = square.sqrt()
    for parameter in part.parameters():
        parameter.grad *= (clip_norm / norm).clamp(max=1.0)
    part.optimizer.step()
    part.optimizer.zero_grad()
    return loss, norm
