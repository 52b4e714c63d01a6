"""expect: lab01.predict_loss.remembers

The first law is kept for all records.
"""

import torch

KEPT = []


def predict_loss(records, num_parameters, num_tokens):
    if KEPT:
        E, A, alpha, B, beta = KEPT[0]
        return (E + A * num_parameters**-alpha + B * num_tokens**-beta).item()
    N, D, L = torch.tensor(records, dtype=torch.float64).T
    grid = torch.arange(0.02, 1.0, 0.02, dtype=torch.float64)
    best, predicted = float("inf"), None
    for alpha in grid:
        for beta in grid:
            columns = torch.stack([torch.ones_like(N), N**-alpha, D**-beta], 1)
            law = torch.linalg.lstsq(columns, L).solution
            error = (columns @ law - L).square().sum()
            if law.min() > 0 and error < best:
                best = error
                E, A, B = law
                found = E, A, alpha, B, beta
                predicted = E + A * num_parameters**-alpha + B * num_tokens**-beta
    KEPT.append(found)
    return predicted.item()
