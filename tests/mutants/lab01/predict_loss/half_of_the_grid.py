"""expect: lab01.predict_loss.negative

Exponents up to 0.2.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, D, L = torch.tensor(records, dtype=torch.float64).T
    grid = torch.arange(0.02, 0.2, 0.02, dtype=torch.float64)
    best, predicted = float("inf"), None
    for alpha in grid:
        for beta in grid:
            columns = torch.stack([torch.ones_like(N), N**-alpha, D**-beta], 1)
            law = torch.linalg.lstsq(columns, L).solution
            error = (columns @ law - L).square().sum()
            if error < best:
                best = error
                E, A, B = law
                predicted = E + A * num_parameters**-alpha + B * num_tokens**-beta
    return predicted.item()
