"""Weights exported to and imported from transformers' Llama and GPT-2 compute the same outputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers import GPT2Config as TheirGpt2Config
from transformers import LlamaConfig as TheirLlamaConfig

from trainer import safetensors_file
from trainer.config.errors import ConfigError
from trainer.config.schema import Gpt2Config, LlamaConfig, MlpConfig
from trainer.models import hf
from trainer.models.init import fill
from trainer.models.registry import build_model

LLAMA = LlamaConfig(vocab_size=97, dim=48, layers=2, heads=6, kv_heads=2, ffn=80, seq_len=32, rope_theta=10000.0)
GPT2 = Gpt2Config(vocab_size=97, dim=48, layers=2, heads=4, seq_len=32)
MODELS = {
    "llama, grouped queries": LLAMA,
    "llama, tied": replace(LLAMA, tie_embeddings=True, kv_heads=6),
    "gpt2": GPT2,
    "gpt2, untied": replace(GPT2, tie_embeddings=False),
}
TOKENS = torch.randint(0, 97, (2, 32), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_transformers_opens_an_export(config: Any, tmp_path: Path) -> None:
    ours = make_model(config)
    hf.export(dict(ours.named_parameters()), config, tmp_path)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_weights_from_transformers_can_be_loaded(config: Any, tmp_path: Path) -> None:
    theirs = AutoModelForCausalLM.from_config(their_config(config)).eval()
    randomise_norms_and_biases(theirs)
    theirs.save_pretrained(tmp_path)
    ours = build_model(config).eval()
    ours.load_state_dict(hf.load(tmp_path, config), strict=not config.tie_embeddings)
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)


def test_a_large_model_is_split_into_several_files(tmp_path: Path) -> None:
    ours = make_model(LLAMA)
    state = dict(ours.named_parameters())
    hf.export(state, LLAMA, tmp_path, shard_bytes=40_000)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 45_000 for file in files)
    again = hf.load(tmp_path, LLAMA)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)
    files[1].unlink()
    assert "model-00002" in error_text(tmp_path, LLAMA)


def test_the_published_gpt2_names_are_recognised(tmp_path: Path) -> None:
    """The published gpt2 has names without a prefix and contains attention masks."""
    ours = make_model(GPT2)
    hf.export(dict(ours.named_parameters()), GPT2, tmp_path)
    reader = safetensors_file.Reader(tmp_path / hf.SINGLE_FILE)
    bare = {name.removeprefix("transformer."): reader[name].clone() for name in reader}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    safetensors_file.write(tmp_path / hf.SINGLE_FILE, bare)
    assert torch.equal(
        hf.load(tmp_path, GPT2)["layers.1.attention.k.bias"], ours.get_parameter("layers.1.attention.k.bias")
    )


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({}, replace(LLAMA, ffn=96), "model.ffn: 96, but FOLDER has intermediate_size 80; set model.ffn=80"),
        ({}, replace(LLAMA, rope_theta=5e5), "model.rope_theta: 500000.0, but FOLDER has rope_theta 10000.0"),
        (
            {},
            replace(LLAMA, tie_embeddings=True),
            "model.tie_embeddings: True, but FOLDER has tie_word_embeddings False",
        ),
        ({}, GPT2, "model.family: gpt2, but FOLDER contains llama"),
        ({"attention_bias": True}, LLAMA, "FOLDER has attention_bias True; only False is supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, LLAMA, "FOLDER has rope_type llama3"),
        ({"head_dim": 16}, LLAMA, "FOLDER has head_dim 16; only 8 is supported"),
        ({}, MlpConfig(), "model.family: mlp has no Hugging Face format; allowed: llama, gpt2"),
    ],
)
def test_settings_of_another_model_are_rejected(
    settings: dict[str, Any], config: Any, message: str, tmp_path: Path
) -> None:
    hf.export(dict(make_model(LLAMA).named_parameters()), LLAMA, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    assert message.replace("FOLDER", str(tmp_path)) in error_text(tmp_path, config)


def test_settings_missing_from_config_json_have_transformers_defaults(tmp_path: Path) -> None:
    tied = replace(LLAMA, tie_embeddings=True, rope_theta=5e5)
    hf.export(dict(make_model(tied).named_parameters()), tied, tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    for name in ("rope_theta", "rope_parameters", "rms_norm_eps", "tie_word_embeddings"):
        del settings[name]
    path.write_text(json.dumps(settings))
    message = error_text(tmp_path, tied)
    assert "rope_theta 10000.0" in message
    assert "rms_norm_eps 1e-06" in message
    assert "tie_word_embeddings False" in message


def test_files_of_another_model_are_rejected(tmp_path: Path) -> None:
    assert "config.json" in error_text(tmp_path, LLAMA)
    state = dict(make_model(LLAMA).named_parameters())
    with pytest.raises(ConfigError, match=r"lacks head\.weight"):
        hf.export({name: value for name, value in state.items() if name != "head.weight"}, LLAMA, tmp_path)
    hf.export({**state, "norm.weight": torch.ones(49)}, LLAMA, tmp_path)
    assert "norm.weight of shape (49,), the model expects (48,)" in error_text(tmp_path, LLAMA)
    deeper = replace(LLAMA, layers=3)
    hf.export(dict(make_model(deeper).named_parameters()), deeper, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'))
    assert "has model.layers.2.input_layernorm.weight" in error_text(tmp_path, LLAMA)
    data = (tmp_path / hf.SINGLE_FILE).read_bytes()
    (tmp_path / hf.SINGLE_FILE).write_bytes(data[:-100])
    assert "it is truncated" in error_text(tmp_path, LLAMA)


def make_model(config: Any) -> torch.nn.Module:
    model = build_model(config).eval()
    fill([model], seed=5)
    randomise_norms_and_biases(model)
    return model


def randomise_norms_and_biases(model: torch.nn.Module) -> None:
    """Make norms and biases differ: they start equal, so swapping two of them would go unnoticed."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def their_config(config: Any) -> Any:
    if isinstance(config, Gpt2Config):
        return TheirGpt2Config(
            vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=32, tie_word_embeddings=config.tie_embeddings
        )
    return TheirLlamaConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=config.kv_heads,
        intermediate_size=80,
        max_position_embeddings=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=config.tie_embeddings,
    )


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        out = model.eval()(TOKENS)
    return getattr(out, "logits", out)


def error_text(folder: Path, config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        hf.load(folder, config)
    return str(caught.value)
