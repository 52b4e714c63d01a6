"""expect: lab06.bubble_fraction.values

With fewer micro-batches than stages the pipeline counts as shorter.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (min(num_stages, num_micro_batches) - 1) / (
        num_micro_batches + min(num_stages, num_micro_batches) - 1
    )
