"""expect: lab03.efficiency.too_early

The longer one of backward and communication.
"""


def efficiency(
    num_ranks, forward_s, backward_s, gradient_bytes, num_buckets, alpha_s, beta_s_per_byte
):
    bucket_bytes = gradient_bytes / num_buckets
    message_s = 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * bucket_bytes / num_ranks)
    step_s = forward_s + max(backward_s, num_buckets * message_s)
    return (forward_s + backward_s) / step_s
