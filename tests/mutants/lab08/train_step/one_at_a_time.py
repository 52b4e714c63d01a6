"""expect: lab08.train_step.runs

The pipeline is emptied after each micro-batch.
"""

import torch
import torch.distributed as dist


def train_step(part, mesh, tokens, targets, num_micro_batches, clip_norm):
    dp = mesh.size("dp")
    own = [x.chunk(dp)[mesh.coordinate("dp")] for x in (tokens, targets)]
    pairs = zip(*(x.chunk(num_micro_batches) for x in own), strict=True)
    loss = sum(part.run([x], [y]) for x, y in pairs) / num_micro_batches / dp
    for parameter in part.parameters():
        parameter.grad /= num_micro_batches
    square = torch.zeros_like(loss)
    for name, parameter in part.named_parameters():
        dist.all_reduce(parameter.grad, group=mesh.group("dp"))
        parameter.grad /= dp
        if part.is_cut(name) or mesh.coordinate("tp") == 0:
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
