"""Seconds of a layer.

Promised: its products do the FLOPs that counting.py counts, cut over ranks; recomputation adds
forward; exchanges come in the numbers that the table says. Oracles: counting.py; sums by hand.
"""

from dataclasses import replace

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.cluster import Cluster
from labkit.cost.counting import attention_flops, layer_product_parameters
from labkit.cost.efficiency import EFFICIENCY, NUMBER_BYTES, bytes_s
from labkit.cost.hardware import device, link
from labkit.cost.layer_time import Work, core_time_s, head_time, layer_products, layer_time
from labkit.cost.layout import Layout
from labkit.cost.software import MEGATRON, TODAY

NODES = Cluster(device=device("a100-80"), intra=link("nvlink3"), inter=link("infiniband-hdr"))
MODELS = ("llama3-8b", "megatron-22b", "mixtral-8x7b")
LAYOUTS = (Layout(), Layout(tp=2), Layout(tp=8, micro_batch_size=4), Layout(cp=2, tp=4))


def work(model="llama3-8b", layout=None, software=TODAY, seq_len=2048):
    return Work(
        model=architecture(model),
        layout=layout or Layout(),
        cluster=NODES,
        seq_len=seq_len,
        software=software,
        law=EFFICIENCY["a100-80"],
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_do_the_counted_flops(model, layout):
    asked = work(model, layout)
    flops = sum(2 * M * K * N * count for M, K, N, count in layer_products(asked))
    whole = asked.model
    router = whole.hidden_size * whole.num_experts * whole.num_layers
    weights = (layer_product_parameters(whole) - router) / whole.num_layers
    tokens = layout.micro_batch_size * 2048
    assert flops * layout.tp * layout.cp == pytest.approx(2 * weights * tokens, rel=1e-12)


def test_experts_over_ranks_do_as_much_in_fewer_products():
    one, cut = work("mixtral-8x7b"), work("mixtral-8x7b", Layout(ep=4))
    flops = [sum(M * K * N * n for M, K, N, n in layer_products(each)) for each in (one, cut)]
    assert flops[0] == pytest.approx(flops[1])
    assert layer_products(cut)[-1][3] == 2
    assert layer_time(cut).ep_s > 0 == layer_time(one).ep_s


def test_the_core_does_the_counted_flops():
    """Without bytes: a device whose memory takes no time."""
    fast = replace(NODES, device=replace(NODES.device, bandwidth_bytes_per_s=10**30))
    rate = EFFICIENCY["a100-80"].peak_share * 312e12
    for software, causal, backward in ((TODAY, True, 2.5), (MEGATRON, False, 2)):
        asked = replace(work("megatron-22b", software=software), cluster=fast)
        flops = attention_flops(asked.model, 2048, 2048, causal) / asked.model.num_layers
        assert core_time_s(asked)[0] == pytest.approx(flops / rate)
        assert core_time_s(asked)[1] == pytest.approx(backward * flops / rate)


@pytest.mark.parametrize("software", [TODAY, MEGATRON])
def test_recomputation_runs_forward_again(software):
    layout = Layout(tp=8)
    none, selective, full = (
        work("megatron-22b", replace(layout, recompute=each), software)
        for each in ("none", "selective", "full")
    )
    kept = layer_time(none)
    assert layer_time(selective).backward_s == pytest.approx(kept.backward_s + core_time_s(none)[0])
    assert layer_time(full).backward_s == pytest.approx(kept.backward_s + kept.forward_s)
    assert layer_time(selective).tp_s == kept.tp_s
    assert layer_time(full).tp_s == pytest.approx(1.5 * kept.tp_s)


def test_sequence_parallelism_saves_memory_traffic_and_no_bytes_of_tp():
    plain, cut = Layout(tp=8), Layout(tp=8, sequence_parallel=True)
    before, after = (layer_time(work("megatron-22b", each, MEGATRON)) for each in (plain, cut))
    stream = 2048 * 6144
    assert before.forward_s - after.forward_s == pytest.approx(
        bytes_s(2 * (4 + 7) * stream * 7 / 8, NODES.device)
    )
    assert before.tp_s == after.tp_s


def test_tp_exchanges_by_hand():
    stream_bytes = NUMBER_BYTES * 2048 * 6144
    one_s = 2 * 7 / 8 * stream_bytes / (0.8 * 300e9)  # an all-reduce in a ring
    assert layer_time(work("megatron-22b", Layout(tp=8))).tp_s == pytest.approx(4 * one_s)


def test_cp_gathers_keys_and_values_twice_and_scatters_their_gradients():
    layout = Layout(cp=4, tp=8)
    whole_bytes = NUMBER_BYTES * 2048 * 2 * 1 * 128  # 8 KV heads over tp=8
    one_s = 3 / 4 * whole_bytes / (0.8 * 25e9)
    assert layer_time(work(layout=layout)).cp_s == pytest.approx(3 * one_s)


def test_the_head_s_backward_is_two_products():
    part = head_time(work())
    assert part.forward_s < part.backward_s < 2 * part.forward_s
