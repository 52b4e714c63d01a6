"""The sum of two."""


def double(x):
    return x + x
