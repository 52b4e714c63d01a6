"""What one candidate says: its bytes by part, and the reason for or against it.

Oracle: by hand, the numbers of Llama 3 70B; and layout_memory for the bytes that a reason quotes.
"""

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.candidates import Job, why_not
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.cost.layout import Layout
from labkit.cost.planner import answer
from labkit.cost.step_time import step_time

MODEL = architecture("llama3-70b")
H100S = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))


def llama_layout(**sizes):
    return Layout(**dict(tp=8, pp=4, dp=16, num_micro_batches=32) | sizes)


def answered(layout, **more):
    job = Job(architecture=MODEL, seq_len=8192, batch_size=512)
    return answer(job, layout, cluster=H100S, **more)


def test_a_reason_names_the_largest_part_and_both_numbers():
    large = answered(llama_layout(micro_batch_size=4, num_micro_batches=8))
    memory = large.memory
    assert large.reason == (
        f"needs {memory.total_bytes / 1e9:.1f} of 72.0 GB: activations are "
        f"{memory.activation_bytes / 1e9:.1f} GB, the largest part"
    )
    whole = answered(Layout(dp=512, recompute="full"))  # 12 bytes for each of 70.55e9 parameters
    assert whole.reason.endswith("optimizer state is 846.6 GB, the largest part")


def test_what_a_step_gathers_for_a_moment_counts():
    """ZeRO 3 has two layers of 855,654,400 parameters whole, in 16 bits, and their gradients."""
    held = answered(Layout(dp=512, recompute="full", zero=3))
    assert held.parts_bytes["working memory"] > 2 * 2 * 2 * 855_654_400
    assert held.needed_bytes == sum(held.parts_bytes.values())
    assert held.reason == f"fits: needs {held.needed_bytes / 1e9:.1f} of 72.0 GB"
    least = (held.needed_bytes - held.parts_bytes["working memory"] / 2) / 80e9
    assert not answered(held.layout, usable=least).feasible


def test_a_share_of_the_memory_decides():
    layout = llama_layout(recompute="full", zero=1)
    needed = answered(layout).needed_bytes
    assert answered(layout, usable=(needed + 1) / 80e9).feasible
    assert not answered(layout, usable=(needed - 1) / 80e9).feasible


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (dict(tp=128, dp=1), "64 heads over tp=128"),
        (dict(pp=128, dp=1, tp=4), "80 layers over 128 stages"),
        (dict(ep=16, dp=1), "ep=16 for a model of 0 experts"),
        (dict(tp=1, pp=1, dp=512, num_micro_batches=3), "512 sequences does not divide"),
        (dict(num_micro_batches=3), "3 micro-batches of 1: these are 48"),
        (dict(num_micro_batches=30, chunks=2), "30 micro-batches on pp=4"),
        (dict(chunks=3, num_micro_batches=32), "3 chunks over ranks of 20 layers"),
        (dict(tp=1, dp=512, pp=1, num_micro_batches=1, chunks=2), "2 chunks on pp=1"),
        (dict(tp=1, dp=128, num_micro_batches=4, sequence_parallel=True), "on tp=1"),
        (dict(tp=64, pp=8, dp=1, num_micro_batches=512, zero=2), "ZeRO 2 over 1 replica"),
    ],
)
def test_what_does_not_divide_is_told_with_both_numbers(sizes, told):
    found = answered(llama_layout(**sizes))
    assert told in found.reason
    assert (found.feasible, found.memory, found.needed_bytes) == (False, None, 0)


def test_tensor_parallelism_beyond_a_node_is_allowed_and_dearer():
    inside = answered(llama_layout(tp=8, pp=4, dp=16, zero=1))
    beyond = answered(llama_layout(tp=16, pp=4, dp=8, num_micro_batches=64, zero=1))
    assert beyond.reason.startswith(("fits", "needs"))
    seconds = [step_time(MODEL, each.layout, H100S, 8192) for each in (inside, beyond)]
    assert seconds[1].tp_s > 2 * seconds[0].tp_s


def test_what_llama_3_used_is_a_candidate():
    """arXiv 2407.21783, table 4: TP 8, CP 1, PP 16, DP 128 and 16 sequences a replica."""
    job = Job(architecture=architecture("llama3-405b"), seq_len=8192, batch_size=2048)
    axes = dict(tp=8, pp=16, dp=128, sequence_parallel=True)
    for chunks in (1, 2, 4, 7):  # the paper does not say; 8 would be 128 stages of 126 layers
        layout = Layout(**axes, num_micro_batches=16, zero=2, chunks=chunks)
        assert why_not(job, layout) is None
    for chunks, told in ((8, "126 layers over 128 stages"), (3, "ranks of 7 or 8 layers")):
        layout = Layout(**axes, num_micro_batches=16, zero=2, chunks=chunks)
        assert told in why_not(job, layout)
