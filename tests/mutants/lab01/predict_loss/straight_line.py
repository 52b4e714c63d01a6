"""expect: lab01.predict_loss.no_floor

A straight line through logarithms, which has no E.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, D, L = torch.tensor(records, dtype=torch.float64).log().T
    columns = torch.stack([torch.ones_like(N), N, D], 1)
    asked = torch.tensor([1.0, num_parameters, num_tokens], dtype=torch.float64)
    asked[1:] = asked[1:].log()
    return (asked @ torch.linalg.lstsq(columns, L).solution).exp().item()
