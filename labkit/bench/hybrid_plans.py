"""The plans of the hybrid table: every factorisation into dp, pp and tp; some with cp and ep.

The model is small, but has what every axis needs: 8 layers for 8 stages, 8 heads for 8 ranks of tp,
of which 2 are KV heads, 4 experts, and 259 words, which nothing divides.
"""

from dataclasses import replace
from functools import partial
from itertools import product

from labkit.compose import Plan
from labkit.model.config import ModelConfig

ROWS, SEQ_LEN = 8, 16
MODEL = ModelConfig(
    num_layers=8,
    hidden_size=32,
    intermediate_size=48,
    num_heads=8,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=259,
    max_seq_len=SEQ_LEN,
)
WITH_EXPERTS = replace(MODEL, num_experts=4, top_k=2, balancing=True)


def factorised(world_size: int) -> dict[str, Plan]:
    """Every (dp, pp, tp) whose product is the world size, by names such as "dp2 pp2"."""
    sizes = [size for size in range(1, world_size + 1) if world_size % size == 0]
    found = {}
    for dp, pp, tp in product(sizes, repeat=3):
        if dp * pp * tp == world_size:
            axes = {"dp": dp, "pp": pp, "tp": tp}
            name = " ".join(f"{axis}{size}" for axis, size in axes.items() if size > 1)
            m = min(2, ROWS // dp)
            found[name] = Plan(dp=dp, pp=pp, tp=tp, num_micro_batches=m)
    return found


TWICE = partial(Plan, num_micro_batches=2)
SPLIT = partial(Plan, sequence_parallel=True)
CONTEXT_AND_EXPERTS = {
    "cp4": TWICE(cp=4),
    "dp2 cp2, ZeRO 3": TWICE(dp=2, cp=2, zero=3),
    "cp2 tp2, sequence": SPLIT(cp=2, tp=2),
    "pp2 cp2": TWICE(pp=2, cp=2),
    "ep4": TWICE(ep=4),
    "dp2 ep2, ZeRO 1": Plan(dp=2, ep=2, zero=1),
    "dp2 ep2, ZeRO 2": TWICE(dp=2, ep=2, zero=2),
    "dp2 ep2, ZeRO 3": Plan(dp=2, ep=2, zero=3, recompute="full"),
    "pp2 ep2": TWICE(pp=2, ep=2),
    "ep2 tp2": Plan(ep=2, tp=2, recompute="full"),
    "ep2 tp2, sequence": SPLIT(ep=2, tp=2, zero=1),
    "cp2 ep2": TWICE(cp=2, ep=2),
    "dp2 cp2 tp2": SPLIT(dp=2, cp=2, tp=2, zero=1),
    "dp2 pp2 ep2": TWICE(dp=2, pp=2, ep=2),
    "pp2 cp2 ep2": TWICE(pp=2, cp=2, ep=2, zero=1),
    "cp2 ep2 tp2": SPLIT(cp=2, ep=2, tp=2),
}
PLANS = factorised(4) | factorised(8) | CONTEXT_AND_EXPERTS
