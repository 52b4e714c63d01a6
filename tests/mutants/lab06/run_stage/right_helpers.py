"""Receives and sends in small functions; each send is awaited when its answer is there."""

import torch
import torch.distributed as dist


def run_stage(stage, actions, inputs, targets, loss_of, boundary, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    ranks = dist.get_process_group_ranks(group)
    first, last = place == 0, place == size - 1
    under_way, losses, held = [], [], {}

    def received(peer):
        buffer = torch.empty_like(boundary)
        dist.irecv(buffer, peer, group).wait()
        return buffer

    for kind, i in actions:
        if kind == "F":
            x = inputs[i] if first else received(ranks[place - 1]).requires_grad_()
            y = stage(x)
            work = None if last else dist.isend(y.detach(), ranks[place + 1], group)
            if last:
                y = loss_of(y, targets[i])
                losses.append(y.detach())
            held[i] = x, y, work
        else:
            x, y, work = held.pop(i)
            if last:
                (y / len(targets)).backward()
            else:
                y.backward(received(ranks[place + 1]))
                work.wait()
            if not first:
                under_way.append(dist.isend(x.grad, ranks[place - 1], group))
    for work in under_way:
        work.wait()
    return torch.stack(losses).mean() if last else None
