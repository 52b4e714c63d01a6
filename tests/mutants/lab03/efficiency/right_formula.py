"""The link waits for backward in every share of it, or backward for the link."""


def efficiency(
    num_ranks, forward_s, backward_s, gradient_bytes, num_buckets, alpha_s, beta_s_per_byte
):
    chunk_s = beta_s_per_byte * gradient_bytes / num_buckets / num_ranks
    message_s = 2 * (num_ranks - 1) * (alpha_s + chunk_s)
    share_s = backward_s / num_buckets
    step_s = forward_s + share_s + (num_buckets - 1) * max(share_s, message_s) + message_s
    return (forward_s + backward_s) / step_s
