"""expect: lab08.load_rank.missing

Only what the stage of this number saved.
"""

import torch


def load_rank(files, pp, tp, pp_rank, tp_rank):
    tensors = {}
    for name in files.names:
        if files.stage(name, files.pp) != pp_rank or files.stage(name, pp) != pp_rank:
            continue
        old, new = files.split(name, files.tp), files.split(name, tp)
        stage = files.stage(name, files.pp)
        start, own = new.part(tp_rank, tp) * new.piece, new.own_size(tp_rank, tp)
        pieces = []
        for part in range(old.parts):
            low = part * old.piece
            first, end = max(start, low), min(start + own, low + old.piece)
            if first < end:
                rank = part * files.tp // old.parts
                pieces.append(files.read(stage, rank, name, first - low, end - low))
        shape = list(pieces[0].shape)
        shape[new.dim] = new.piece - own
        tensors[name] = torch.cat([*pieces, pieces[0].new_zeros(shape)], new.dim)
    return tensors
