"""expect: lab01.predict_loss.constant

The mean of the records.
"""


def predict_loss(records, num_parameters, num_tokens):
    return sum(loss for _, _, loss in records) / len(records)
