"""One bucket after another."""


def efficiency(
    num_ranks, forward_s, backward_s, gradient_bytes, num_buckets, alpha_s, beta_s_per_byte
):
    bucket_bytes = gradient_bytes / num_buckets
    message_s = 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * bucket_bytes / num_ranks)
    end_s = 0.0
    for bucket in range(1, num_buckets + 1):
        ready_s = forward_s + backward_s * bucket / num_buckets
        end_s = max(end_s, ready_s) + message_s
    return (forward_s + backward_s) / end_s
