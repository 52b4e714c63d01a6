"""Hugging Face's transformers as the oracle: the same folder, the same logits, both ways.

Random weights of std 0.3 make attention sharp and the logits large, so that a wrong layout shows.
"""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from labkit.model.checkpoint import PRETRAINED, load_checkpoint, save_checkpoint
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer

SMALL = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500_000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
CASES = {
    "llama": ("Llama", {}),
    "tied": ("Llama", dict(tie_word_embeddings=True)),
    "llama 3.1 rope": ("Llama", dict(rope_parameters=LLAMA3_ROPE)),
    "wide heads": ("Llama", dict(head_dim=16)),
    "attention bias": ("Llama", dict(attention_bias=True)),
    "qwen3": ("Qwen3", dict(head_dim=16)),
    "qwen3 tied": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True)),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
}


def theirs(kind, **changes):
    torch.manual_seed(0)  # transformers draws from the global generator
    config = getattr(transformers, f"{kind}Config")(**SMALL | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    return model


def difference(ours, model, tokens):
    with torch.no_grad():
        return (ours(tokens) - model(tokens).logits).abs().max().item()


@pytest.mark.parametrize("case", CASES)
def test_their_folder_gives_their_logits(case, tmp_path):
    kind, changes = CASES[case]
    model = theirs(kind, **changes)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, 512, (2, 100), generator=torch.Generator().manual_seed(1))
    # fp32, the same operations in the same order up to where the mask is made: a few eps of logits
    # near 50.
    assert difference(load_checkpoint(tmp_path), model, tokens) < 2e-4


def test_the_bound_would_catch_interleaved_pairs(tmp_path):
    """The other rotary layout, a common mistake, is a million times further away."""
    model = theirs("Llama")
    model.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path)
    order = torch.arange(8).view(2, 4).T.flatten()  # half-split rows read as interleaved
    for layer in ours.layers:
        q = layer.self_attn.q_proj.weight.data.view(8, 8, 64)
        layer.self_attn.q_proj.weight.data = q[:, order].reshape(64, 64)
    tokens = torch.randint(0, 512, (2, 100), generator=torch.Generator().manual_seed(1))
    assert difference(ours, model, tokens) > 1.0


@pytest.mark.parametrize("name", ["nano", "nano-moe"])
def test_our_folder_is_read_by_them(name, tmp_path):
    ours = Transformer(replace(PRESETS[name], balancing=False))
    save_checkpoint(tmp_path, ours, torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(0, 259, (2, 50), generator=torch.Generator().manual_seed(1))
    assert difference(ours, model, tokens) < 1e-5


@pytest.mark.parametrize("name", sorted(p.name for p in PRETRAINED.glob("*/")))
def test_the_shipped_models_are_read_by_them(name):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        PRETRAINED / name, dtype=torch.float32
    ).eval()
    tokens = torch.tensor([list(b"Friends, Romans, countrymen")])
    assert difference(load_checkpoint(name), model, tokens) < 1e-4


def test_their_shards_are_read(tmp_path):
    model = theirs("Llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    tokens = torch.randint(0, 512, (1, 20), generator=torch.Generator().manual_seed(1))
    assert difference(load_checkpoint(tmp_path), model, tokens) < 2e-4
