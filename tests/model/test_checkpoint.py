"""Checkpoints come back as they were; damaged, foreign and dangerous ones are refused."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from labkit.model.checkpoint import load_checkpoint, save_checkpoint
from labkit.model.config import PRESETS
from labkit.model.files import read_safetensors, write_atomically, write_safetensors
from labkit.model.huggingface import config_from_hf, config_to_hf
from labkit.model.transformer import Transformer, initialise


@pytest.fixture
def saved(tmp_path):
    model = Transformer(PRESETS["nano"])
    initialise(model, torch.Generator().manual_seed(0))
    save_checkpoint(tmp_path, model, torch.float32)
    return tmp_path, model


def test_weights_come_back_bit_for_bit(saved):
    folder, model = saved
    back = load_checkpoint(folder)
    assert back.config == model.config
    for (name, p), (other, q) in zip(
        model.named_parameters(), back.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(p, q)
        assert q.requires_grad


def test_bf16_is_the_default_on_disk_and_fp32_in_memory(tmp_path):
    save_checkpoint(tmp_path, Transformer(PRESETS["nano"]))
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert {p.dtype for p in load_checkpoint(tmp_path).parameters()} == {torch.float32}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_configs_come_back(name):
    assert config_from_hf(config_to_hf(PRESETS[name])) == PRESETS[name]


def test_old_config_files_have_theta_at_the_top():
    raw = config_to_hf(PRESETS["llama3-8b"])
    raw["rope_theta"] = raw.pop("rope_parameters")["rope_theta"]
    assert config_from_hf(raw) == PRESETS["llama3-8b"]


def test_shards_are_joined(saved):
    folder, model = saved
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, folder / file)
    index = {key: file for file, keys in parts.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(load_checkpoint(folder).norm.weight, model.norm.weight)


class Marker:
    """A pickle of this writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("writer", ["torch.save", "pickle 2", "pickle 5"])
def test_a_pickle_is_refused_and_not_run(saved, writer):
    folder, _ = saved
    marker, weights = folder / "was_run", folder / "model.safetensors"
    if writer == "torch.save":
        torch.save({"x": Marker(marker)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Marker(marker), protocol=int(writer[-1])))
    with pytest.raises(ValueError, match="is a pickle"):
        load_checkpoint(folder)
    assert not marker.exists()


def test_a_folder_with_only_a_pickle_says_so(saved):
    folder, _ = saved
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        FileNotFoundError, match=r"pytorch_model\.bin is a pickle and is not loaded"
    ):
        load_checkpoint(folder)


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -1])
def test_a_damaged_file_is_named_with_its_size(saved, kept_bytes):
    folder, _ = saved
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    size = weights.stat().st_size
    with pytest.raises(ValueError, match=rf"model\.safetensors \({size} bytes\) is damaged"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors"])
def test_an_index_cannot_leave_the_folder(saved, name):
    folder, _ = saved
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="leaves the folder"):
        load_checkpoint(folder)


def test_a_missing_an_unknown_and_a_misshapen_tensor(saved):
    folder, _ = saved
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors | {"model.extra.weight": norm}, weights)
    with pytest.raises(ValueError, match=r"1 tensors missing \(first: \['norm.weight'\]\), 1 not"):
        load_checkpoint(folder)
    save_file(tensors | {"model.norm.weight": norm[:5].clone()}, weights)
    with pytest.raises(ValueError, match=r"norm.weight has shape \(5,\), the config says \(64,\)"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(model_type="gpt2"), "'gpt2' is not read"),
        (dict(hidden_act="gelu"), "hidden_act 'gelu' is not implemented"),
        (dict(rope_parameters={"rope_type": "yarn"}), "rope_type 'yarn' is not implemented"),
        (dict(hidden_size=None), "hidden_size"),
    ],
)
def test_a_foreign_architecture_is_refused_by_name(change, message):
    raw = {k: v for k, v in (config_to_hf(PRESETS["nano"]) | change).items() if v is not None}
    with pytest.raises(ValueError, match=message):
        config_from_hf(raw)


def test_no_such_model_names_the_shipped_ones():
    with pytest.raises(
        FileNotFoundError, match=r"no nope/config\.json; shipped models: mini, mini-mha"
    ):
        load_checkpoint("nope")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"x": torch.ones(2)}, {})

    def disk_is_full(tensors, where, metadata):
        where.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("labkit.model.files.save_file", disk_is_full)
    with pytest.raises(OSError, match="no space"):
        write_safetensors(path, {"x": torch.zeros(2)}, {})
    assert torch.equal(read_safetensors(path)[0]["x"], torch.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_header_length_that_looks_like_a_pickle_is_read(tmp_path):
    """The first byte of a file is the low byte of its header's length: 0x80 in 1 of 32."""
    path, padding = tmp_path / "x.safetensors", ""
    while True:
        write_safetensors(path, {"x": torch.ones(2)}, {"padding": padding})
        if path.read_bytes()[:1] == b"\x80":
            break
        padding += " " * 8
    assert torch.equal(read_safetensors(path)[0]["x"], torch.ones(2))


def test_text_is_written_whole(tmp_path):
    write_atomically(tmp_path / "a.txt", "one\n")
    write_atomically(tmp_path / "a.txt", "two\n")
    assert (tmp_path / "a.txt").read_text() == "two\n"


def test_tied_models_come_back(tmp_path):
    model = Transformer(replace(PRESETS["nano"], tied=True))
    save_checkpoint(tmp_path, model, torch.float32)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert torch.equal(load_checkpoint(tmp_path).embed_tokens.weight, model.embed_tokens.weight)


def test_a_mixture_comes_back_with_a_bias_of_fp32_and_mixtrals_names(tmp_path):
    model = Transformer(PRESETS["nano-moe"])
    generator = torch.Generator().manual_seed(0)
    initialise(model, generator)
    for layer in model.layers:
        layer.mlp.bias.normal_(0, 1e-3, generator=generator)
    save_checkpoint(tmp_path, model)
    stored = load_file(tmp_path / "model.safetensors")
    mixture = "model.layers.3.block_sparse_moe"
    mlps = {f"{mixture}.experts.{e}.w{w}.weight" for e in range(8) for w in (1, 2, 3)}
    wanted = {f"{mixture}.gate.weight", f"{mixture}.bias", *mlps}
    assert {name for name in stored if name.startswith(mixture)} == wanted
    assert not any(".mlp." in name for name in stored)
    for name, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        weight = model.layers[3].mlp.experts[5].get_submodule(ours).weight
        assert torch.equal(stored[f"{mixture}.experts.5.{name}.weight"], weight.bfloat16())

    back = load_checkpoint(tmp_path)
    assert back.config == model.config
    found = back.state_dict()
    assert found.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        kept = tensor if name.endswith(".mlp.bias") else tensor.bfloat16().float()
        assert torch.equal(found[name], kept), name
    for name, tensor in stored.items():
        assert (tensor.dtype == torch.float32) == name.endswith("moe.bias"), name
    assert not any(layer.mlp.counts.any() for layer in back.layers)


@pytest.mark.parametrize("balancing", [True, False])
def test_config_json_says_whether_routers_balance(balancing):
    config = replace(PRESETS["nano-moe"], balancing=balancing)
    raw = json.loads(json.dumps(config_to_hf(config)))
    assert (raw["model_type"], raw["balancing"]) == ("mixtral", balancing)
    assert config_from_hf(raw) == config
    del raw["balancing"]  # as Mixtral's own file
    assert config_from_hf(raw) == replace(config, balancing=False)


@pytest.mark.parametrize("change", [dict(qk_norm=True), dict(attention_bias=True)])
def test_a_mixture_that_nobody_reads_is_not_written(change, tmp_path):
    model = Transformer(replace(PRESETS["nano-moe"], **change))
    with pytest.raises(ValueError, match=r"8 experts with qk_norm .* no other mixture is written"):
        save_checkpoint(tmp_path, model)
    assert not (tmp_path / "config.json").exists()
