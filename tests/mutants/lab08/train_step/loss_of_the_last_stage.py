"""expect: lab08.train_step.loss_zero

The other stages return 0.
"""

import torch
import torch.distributed as dist


def train_step(part, mesh, tokens, targets, num_micro_batches, clip_norm):
    dp = mesh.size("dp")
    own = [x.chunk(dp)[mesh.coordinate("dp")] for x in (tokens, targets)]
    loss = part.run(*(x.chunk(num_micro_batches) for x in own)) / dp
    square = torch.zeros_like(loss)
    for name, parameter in part.named_parameters():
        dist.all_reduce(parameter.grad, group=mesh.group("dp"))
        parameter.grad /= dp
        if part.is_cut(name) or mesh.coordinate("tp") == 0:
            square += parameter.grad.square().sum()
    for number, axes in ((loss, ("dp",)), (square, ("pp", "tp"))):
        for axis in axes:
            dist.all_reduce(number, group=mesh.group(axis))
    norm = square.sqrt()
    for parameter in part.parameters():
        parameter.grad *= (clip_norm / norm).clamp(max=1.0)
    part.optimizer.step()
    part.optimizer.zero_grad()
    return loss, norm
