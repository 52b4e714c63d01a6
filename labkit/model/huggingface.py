"""Translate between our `ModelConfig` and the `config.json` of a Hugging Face folder.

Llama and Qwen3 are read; anything that would change the logits and that we do not implement is
refused by name rather than ignored.
"""

from typing import Any

from labkit.model.config import ModelConfig, RopeScaling

_RENAMED = {  # ours: Hugging Face's
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "attention_bias": "attention_bias",
}


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json that describes our model to others."""
    qwen = config.qk_norm
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
        }
    return {
        "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": "qwen3" if qwen else "llama",
        "hidden_act": "silu",
        "rope_parameters": rope,
    } | {theirs: getattr(config, ours) for ours, theirs in _RENAMED.items()}


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Our config from theirs, old files (rope_theta at the top) and new (rope_parameters) alike.

    Raises:
        ValueError: for a model or a setting that we do not implement.
    """
    kind = raw.get("model_type")
    if kind not in ("llama", "qwen3"):
        raise ValueError(f"model_type {kind!r} is not read; 'llama' and 'qwen3' are")
    for name, only in (("hidden_act", "silu"), ("mlp_bias", False), ("use_sliding_window", False)):
        if raw.get(name, only) != only:
            raise ValueError(f"{name} {raw[name]!r} is not implemented; only {only!r} is")
    raw = {"head_dim": None, "tie_word_embeddings": False, "attention_bias": False} | raw
    raw["head_dim"] = raw["head_dim"] or raw["hidden_size"] // raw["num_attention_heads"]
    try:
        shape = {ours: raw[theirs] for ours, theirs in _RENAMED.items()}
    except KeyError as error:
        raise ValueError(f"config.json lacks {error}") from None
    theta, scaling = _rope(raw)
    return ModelConfig(**shape, rope_theta=theta, rope_scaling=scaling, qk_norm=kind == "qwen3")


def _rope(raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = rope.get("rope_theta", raw.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not implemented; 'default' and 'llama3' are")
    return theta, RopeScaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_max_seq_len=rope["original_max_position_embeddings"],
    )
