"""expect: lab01.predict_loss.text_alone

The size has no term.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, D, L = torch.tensor(records, dtype=torch.float64).T
    grid = torch.arange(0.02, 1.0, 0.02, dtype=torch.float64)
    best, predicted = float("inf"), None
    for _ in (0,):
        for beta in grid:
            columns = torch.stack([torch.ones_like(N), D**-beta], 1)
            law = torch.linalg.lstsq(columns, L).solution
            error = (columns @ law - L).square().sum()
            if error < best:
                best = error
                E, B = law
                predicted = E + B * num_tokens**-beta
    return predicted.item()
