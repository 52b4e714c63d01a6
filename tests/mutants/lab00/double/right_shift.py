"""Half as much, taken away from both sides."""


def double(x):
    return x / 0.5
