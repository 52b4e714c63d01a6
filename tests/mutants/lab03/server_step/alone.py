"""expect: lab03.server.alone

Every rank trains by itself.
"""


def server_step(weights, gradient, lr, group):
    return weights - lr * gradient
