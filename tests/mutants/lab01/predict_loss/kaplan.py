"""expect: lab01.predict_loss.records

Kaplan's printed constants.
"""


def predict_loss(records, num_parameters, num_tokens):
    size = (6.4e13 / num_parameters) ** (0.076 / 0.103)
    return (size + 1.8e13 / num_tokens) ** 0.103
