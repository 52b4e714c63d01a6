"""The table of known models.

Oracles: the presets of labkit.model; the papers' own counts of parameters.
"""

import pytest

from labkit.cost.architecture import ARCHITECTURES, Architecture, architecture
from labkit.cost.counting import active_parameters, num_parameters
from labkit.model.config import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_the_presets_of_the_model_stand_here_with_the_same_sizes(name):
    assert Architecture.of(PRESETS[name]) == architecture(name)


# Billions, as the sources print them; see the comments of the table.
PRINTED = {
    "gpt2-xl": "1.56",
    "gpt3-175b": "175",
    "megatron-22b": "22",
    "megatron-175b": "175",
    "megatron-530b": "530",
    "megatron-1t": "1008",
    "llama3-8b": "8.03",
    "llama3-70b": "70.6",
    "llama3-405b": "406",  # "405B" is cut off, not rounded
    "qwen3-4b": "4.0",
    "mixtral-8x7b": "46.7",
    "deepseek-v3": "671",
    "zero-7.5b": "7.5",
}


@pytest.mark.parametrize(("name", "billions"), PRINTED.items())
def test_parameters_round_to_the_published_number(name, billions):
    digits = len(billions.partition(".")[2])
    assert f"{num_parameters(architecture(name)) / 1e9:.{digits}f}" == billions


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("deepseek-v3", 37.5)])
def test_experts_that_a_token_does_not_meet_are_idle(name, billions):
    # The reports say 13 and 37 billion; 12.9 is Mistral's announcement.
    assert active_parameters(architecture(name)) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
def test_the_ladder_satisfies_the_papers_sum(name):
    """P = 12LD²(1 + 13/12D + (V + s)/12LD), arXiv 2104.04473, equation 2; and a last norm."""
    model = architecture(name)
    L, D = model.num_layers, model.hidden_size
    rest = (model.vocab_size + 2048) * D
    assert num_parameters(model) == 12 * L * D * D + 13 * L * D + rest + 2 * D


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'llama4'.*llama3-70b.*zero-7\.5b"):
        architecture("llama4")


def test_every_entry_has_heads_that_share_keys_evenly():
    for model in ARCHITECTURES.values():
        assert model.num_heads % model.num_kv_heads == 0
        assert model.top_k <= model.num_experts
