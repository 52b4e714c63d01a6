"""Translate between our `ModelConfig` and the `config.json` of a Hugging Face folder.

Llama, Qwen3 and Mixtral are read; anything that would change the logits and that we do not
implement is refused by name rather than ignored. A mixture's balancing bias is ours alone:
`transformers` would choose without it, so config.json names it.
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
_OF_EXPERTS = {
    "num_experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "balancing": "balancing",
}
_MIXTRAL = {  # ours: theirs, parts of the names of weights
    ".mlp.router.": ".block_sparse_moe.gate.",
    ".mlp.experts.": ".block_sparse_moe.experts.",
    ".mlp.bias": ".block_sparse_moe.bias",
    ".gate_proj.": ".w1.",
    ".down_proj.": ".w2.",
    ".up_proj.": ".w3.",
}

_ONLY = {  # settings that would change the logits, and the one value that we implement
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
}


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json that describes our model to others.

    Raises:
        ValueError: for a mixture of experts in a model that no published architecture has.
    """
    if config.num_experts and (config.qk_norm or config.attention_bias):
        raise ValueError(
            f"{config.num_experts} experts with qk_norm {config.qk_norm} and attention_bias "
            f"{config.attention_bias}: Mixtral has neither, and no other mixture is written"
        )
    kind = "mixtral" if config.num_experts else "qwen3" if config.qk_norm else "llama"
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
    names = _RENAMED | (_OF_EXPERTS if config.num_experts else {})
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
        "rope_parameters": rope,
    } | {theirs: getattr(config, ours) for ours, theirs in names.items()}


def config_from_hf(raw: dict[str, Any]) -> ModelConfig:
    """Our config from theirs, old files (rope_theta at the top) and new (rope_parameters) alike.

    Raises:
        ValueError: for a model or a setting that we do not implement.
    """
    kind = raw.get("model_type")
    if kind not in ("llama", "qwen3", "mixtral"):
        raise ValueError(f"model_type {kind!r} is not read; 'llama', 'qwen3' and 'mixtral' are")
    only_values: dict[str, Any] = dict(_ONLY)
    if kind == "mixtral":
        only_values["sliding_window"] = None
    for name, only in only_values.items():
        if raw.get(name, only) != only:
            raise ValueError(f"{name} {raw[name]!r} is not implemented; only {only!r} is")
    unsaid = {"tie_word_embeddings": False, "attention_bias": False, "balancing": False}
    raw = {"head_dim": None, **unsaid, **raw}
    raw["head_dim"] = raw["head_dim"] or raw["hidden_size"] // raw["num_attention_heads"]
    names = _RENAMED | (_OF_EXPERTS if kind == "mixtral" else {})
    try:
        shape = {ours: raw[theirs] for ours, theirs in names.items()}
    except KeyError as error:
        raise ValueError(f"config.json lacks {error}") from None
    theta, scaling = _rope(raw)
    return ModelConfig(**shape, rope_theta=theta, rope_scaling=scaling, qk_norm=kind == "qwen3")


def name_to_hf(name: str) -> str:
    """A weight's name in the file; experts have Mixtral's."""
    if ".mlp.experts." in name or ".mlp.router." in name or name.endswith(".mlp.bias"):
        for ours, theirs in _MIXTRAL.items():
            name = name.replace(ours, theirs)
    return name if name.startswith("lm_head") else f"model.{name}"


def name_from_hf(name: str) -> str:
    """The inverse of `name_to_hf`."""
    if ".block_sparse_moe." in name:
        for ours, theirs in _MIXTRAL.items():
            name = name.replace(theirs, ours)
    return name.removeprefix("model.")


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
