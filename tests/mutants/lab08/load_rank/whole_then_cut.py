"""expect: lab08.load_rank.read

The whole tensor is read, then cut.
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
        for part in range(old.parts):
            low = part * old.piece
            first, end = max(start, low), min(start + own, low + old.piece)
            rank = part * files.tp // old.parts
            piece = files.read(stage, rank, name)
            if first < end:
                pieces.append(piece.narrow(old.dim, first - low, end - first).clone())
        shape = list(pieces[0].shape)
        shape[new.dim] = new.piece - own
        tensors[name] = torch.cat([*pieces, pieces[0].new_zeros(shape)], new.dim)
    return tensors
