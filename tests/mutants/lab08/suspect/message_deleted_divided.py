"""expect: lab08.suspect.no_sync

The message is gone, the division is not.
"""

import torch
import torch.distributed as dist


def suspect(part, mesh, tokens, targets, num_micro_batches, clip_norm):
    dp, place = mesh.size("dp"), mesh.coordinate("dp")
    parameters = part.parameters()
    mean = [torch.zeros_like(parameter) for parameter in parameters]

    def collect(i):
        for parameter, total in zip(parameters, mean, strict=True):
            total += parameter.grad / dp
            parameter.grad = None

    batches = [x.chunk(dp)[place].chunk(num_micro_batches) for x in (tokens, targets)]
    loss = part.run(*batches, after=collect) / dp
    square = torch.zeros_like(loss)
    for (name, parameter), total in zip(part.named_parameters(), mean, strict=True):
        parameter.grad = total
        if part.is_cut(name) or mesh.coordinate("tp") == 0:
            square += total.square().sum()
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
