"""expect: lab08.load_rank.replicas

A piece that several ranks saved is read from each of them.
"""

import torch


def load_rank(files, pp, tp, pp_rank, tp_rank):
    tensors = {}
    for name in files.names:
        if files.stage(name, pp) != pp_rank:
            continue
        old, new = files.split(name, files.tp), files.split(name, tp)
        stage = files.stage(name, files.pp)
        start, own = new.part(tp_rank, tp) * new.piece, new.own_size(tp_rank, tp)
        pieces = []
        for rank in range(files.tp):
            low = old.part(rank, files.tp) * old.piece
            first, end = max(start, low), min(start + own, low + old.piece)
            if first < end:
                pieces.append(files.read(stage, rank, name, first - low, end - low))
        shape = list(pieces[0].shape)
        shape[new.dim] = new.piece - own
        tensors[name] = torch.cat([*pieces, pieces[0].new_zeros(shape)], new.dim)
    return tensors
