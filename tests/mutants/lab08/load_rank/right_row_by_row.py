"""One row, or column, after the other."""

import torch


def load_rank(files, pp, tp, pp_rank, tp_rank):
    tensors = {}
    for name in files.names:
        if files.stage(name, pp) == pp_rank:
            old, new = files.split(name, files.tp), files.split(name, tp)
            start = new.part(tp_rank, tp) * new.piece
            lines = []
            for line in range(start, min(start + new.piece, new.size)):
                part, at = divmod(line, old.piece)
                rank = part * files.tp // old.parts
                stage = files.stage(name, files.pp)
                lines.append(files.read(stage, rank, name, at, at + 1))
            while len(lines) < new.piece:
                lines.append(torch.zeros_like(lines[0]))
            tensors[name] = torch.cat(lines, new.dim)
    return tensors
