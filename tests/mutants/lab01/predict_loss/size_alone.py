"""expect: lab01.predict_loss.size_alone

The text has no term.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, _, L = torch.tensor(records, dtype=torch.float64).T
    grid = torch.arange(0.02, 1.0, 0.02, dtype=torch.float64)
    best, predicted = float("inf"), None
    for alpha in grid:
        for _ in (0,):
            columns = torch.stack([torch.ones_like(N), N**-alpha], 1)
            law = torch.linalg.lstsq(columns, L).solution
            error = (columns @ law - L).square().sum()
            if error < best:
                best = error
                E, A = law
                predicted = E + A * num_parameters**-alpha
    return predicted.item()
