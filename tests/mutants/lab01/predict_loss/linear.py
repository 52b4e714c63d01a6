"""expect: lab01.predict_loss.rises

A plane through the losses.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, D, L = torch.tensor(records, dtype=torch.float64).T
    columns = torch.stack([torch.ones_like(N), N, D], 1)
    E, A, B = torch.linalg.lstsq(columns, L).solution
    return (E + A * num_parameters + B * num_tokens).item()
