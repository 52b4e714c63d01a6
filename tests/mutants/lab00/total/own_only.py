"""expect: lab00.total.values

Every rank answers for itself.
"""


def total(x, group):
    return x.clone()
