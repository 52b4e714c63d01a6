"""expect: lab01.predict_loss.values

Chinchilla's law, shifted so that it meets the largest record.
"""


def predict_loss(records, num_parameters, num_tokens):
    def printed(n, d):
        return 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28

    n, d, loss = max(records)
    return loss * printed(num_parameters, num_tokens) / printed(n, d)
