"""expect: lab00.double.untouched

It doubles the caller's tensor.
"""


def double(x):
    x *= 2
    return x
