"""expect: lab03.efficiency.short

From the first bucket on the link is taken to be busy.
"""


def efficiency(
    num_ranks, forward_s, backward_s, gradient_bytes, num_buckets, alpha_s, beta_s_per_byte
):
    bucket_bytes = gradient_bytes / num_buckets
    message_s = 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * bucket_bytes / num_ranks)
    end_s = forward_s + backward_s / num_buckets + num_buckets * message_s
    return (forward_s + backward_s) / end_s
