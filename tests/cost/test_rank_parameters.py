"""What a rank holds before ZeRO: all stages together are the model, and each tensor is cut right.

Oracles: num_parameters, which is tested against instantiated models; sums by hand; the buckets of
labkit.comm. What real ranks hold is compared in test_layout_memory.py.
"""

import pytest
import torch

from labkit.comm.buckets import assign_buckets
from labkit.cost.architecture import ARCHITECTURES, Architecture
from labkit.cost.counting import num_parameters
from labkit.cost.layout import Layout
from labkit.cost.rank_parameters import bucket_numels, rank_tensors, stage_parts
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer
from labkit.parallel.pipeline import interleaved, split_layers


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "deepseek-v3"])
def test_the_stages_hold_the_model_and_tied_words_twice(name):
    model = ARCHITECTURES[name]
    for pp in (1, 3):
        layout = Layout(pp=pp)
        held = sum(
            part.num_parameters
            for stage in range(pp)
            for part in rank_tensors(model, layout, stage)
        )
        twice = model.vocab_size * model.hidden_size if model.tied and pp > 1 else 0
        assert held == num_parameters(model) + twice


def test_padding_norms_and_heads_of_a_rank_by_hand():
    """nano on tp=4: 259 words are 65 a rank, norms are whole, and 2 KV heads are 1 a rank."""
    (part,) = rank_tensors(Architecture.of(PRESETS["nano"]), Layout(tp=4))
    layer = 2 * 64 + (16 + 16 + 16 + 16) * 64 + 3 * 44 * 64
    assert part.num_parameters == 2 * 65 * 64 + 64 + 4 * layer


@pytest.mark.parametrize(("num_layers", "pp", "chunks"), [(7, 3, 1), (10, 2, 2), (8, 4, 2)])
def test_layers_lie_where_the_pipeline_puts_them(num_layers, pp, chunks):
    parts = split_layers(num_layers, pp * chunks)
    place = interleaved(pp, pp, chunks).stage if chunks > 1 else lambda rank, chunk: rank
    for rank in range(pp):
        told = stage_parts(num_layers, Layout(pp=pp, chunks=chunks, num_micro_batches=pp), rank)
        assert [part.layers for part in told] == [parts[place(rank, v)] for v in range(chunks)]
        assert [part.is_first for part in told] == [rank == 0] + [False] * (chunks - 1)
        assert [part.is_last for part in told] == [False] * (chunks - 1) + [rank == pp - 1]


@pytest.mark.parametrize("bucket_bytes", [1, 30_000, 100_000, 10**9])
def test_buckets_are_those_of_a_real_model(bucket_bytes):
    parameters = list(Transformer(PRESETS["nano"]).parameters())
    places = assign_buckets(parameters, bucket_bytes, reverse=True)
    numels = [sum(parameters[i].numel() for i in place) for place in places]
    (part,) = rank_tensors(Architecture.of(PRESETS["nano"]), Layout())
    assert part.dense == [parameter.numel() for parameter in parameters]
    assert bucket_numels(part.dense, bucket_bytes, torch.float32.itemsize) == numels


def test_a_rank_that_is_none():
    with pytest.raises(ValueError, match=r"pipeline rank 2 of pp=2: ranks are 0 to 1"):
        rank_tensors(ARCHITECTURES["nano"], Layout(pp=2), 2)
    with pytest.raises(ValueError, match=r"4 layers over 5 stages"):
        rank_tensors(ARCHITECTURES["nano"], Layout(pp=5), 2)
