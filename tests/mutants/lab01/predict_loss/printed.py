"""expect: lab01.predict_loss.records

Chinchilla's printed constants.
"""


def predict_loss(records, num_parameters, num_tokens):
    return 1.69 + 406.4 / num_parameters**0.34 + 410.7 / num_tokens**0.28
