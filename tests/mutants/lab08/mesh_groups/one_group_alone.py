"""expect: lab08.mesh_groups.form

One list of ranks instead of a list of groups.
"""


def mesh_groups(sizes, axes):
    stride = 1
    for axis in reversed(list(sizes)):
        if axis in axes:
            return [place * stride for place in range(sizes[axis])]
        stride *= sizes[axis]
