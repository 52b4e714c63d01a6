"""What the replicas of a rank's weights send in a step: gradients, and weights under ZeRO.

Dense weights have dp * cp * ep replicas, experts dp * cp. Each kind travels for itself, in its own
buckets or units, as sharding.py says for one kind.

Sources: sharding.py's.
"""

from labkit.cost.layout import Layout
from labkit.cost.layout_memory import cut_numels
from labkit.cost.rank_parameters import RankTensors, bucket_numels
from labkit.cost.sharding import Traffic, zero_traffic


def replica_traffic(
    tensors: RankTensors, layout: Layout, number_bytes: int, bucket_bytes: int
) -> Traffic:
    """One rank's, of one chunk.

    Args:
        tensors: those that the rank has of it.
        number_bytes: of a parameter and a gradient as they are sent.
        bucket_bytes: limit of a bucket, in stages 0 to 2 of ZeRO.
    """
    if layout.zero:
        cut = cut_numels(tensors, layout, bucket_bytes, number_bytes)
    else:
        sets = ((tensors.dense, layout.replicas), (tensors.experts, layout.expert_replicas))
        cut = [(bucket_numels(each, bucket_bytes, number_bytes), ranks) for each, ranks in sets]
    total = Traffic()
    for numels, ranks in cut:
        total += zero_traffic(
            numels,
            stage=layout.zero,
            group_size=ranks,
            number_bytes=number_bytes,
            num_micro_batches=layout.num_micro_batches,
        )
    return total
