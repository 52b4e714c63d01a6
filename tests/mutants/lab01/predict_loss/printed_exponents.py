"""expect: lab01.predict_loss.values

Chinchilla's exponents, with E, A and B of the records.
"""

import torch


def predict_loss(records, num_parameters, num_tokens):
    N, D, L = torch.tensor(records, dtype=torch.float64).T
    columns = torch.stack([torch.ones_like(N), N**-0.34, D**-0.28], 1)
    E, A, B = torch.linalg.lstsq(columns, L).solution
    return (E + A * num_parameters**-0.34 + B * num_tokens**-0.28).item()
