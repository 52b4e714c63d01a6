"""Zeros first, filled piece by piece."""

import torch


def load_rank(files, pp, tp, pp_rank, tp_rank):
    tensors = {}
    for name in (n for n in files.names if files.stage(n, pp) == pp_rank):
        old, new = files.split(name, files.tp), files.split(name, tp)
        start, stage = new.part(tp_rank, tp) * new.piece, files.stage(name, files.pp)
        shape = list(files.read(stage, 0, name, 0, 0).shape)
        shape[new.dim] = new.piece
        tensor, seen = torch.zeros(shape), set()
        for rank in range(files.tp):
            part = old.part(rank, files.tp)
            low = part * old.piece
            first = max(start, low)
            end = min(start + new.piece, low + old.own_size(rank, files.tp))
            if part not in seen and first < end:
                piece = files.read(stage, rank, name, first - low, end - low)
                tensor.narrow(new.dim, first - start, end - first).copy_(piece)
            seen.add(part)
        tensors[name] = tensor
    return tensors
