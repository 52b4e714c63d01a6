"""expect: lab01.predict_loss.constant

The record of the nearest size.
"""


def predict_loss(records, num_parameters, num_tokens):
    return min(records, key=lambda record: abs(record[0] - num_parameters))[2]
