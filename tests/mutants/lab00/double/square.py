"""expect: lab00.double.values

It squares; for 0 and 2 that is the same.
"""


def double(x):
    return x * x
