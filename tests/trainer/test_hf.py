"""Weights exported to and imported from transformers compute the same outputs, for every family of decoders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainer import safetensors_file
from trainer.__main__ import main
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.config.models import (
    Gpt2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MlpConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from trainer.models import hf
from trainer.models.hf_config import select_origin
from trainer.models.init import fill
from trainer.models.registry import build_model

SIZES: dict[str, Any] = {"vocab_size": 97, "dim": 48, "layers": 2, "heads": 6, "kv_heads": 2, "ffn": 80, "seq_len": 32}
LLAMA = LlamaConfig(**SIZES, rope_theta=10000.0)
# Of the four frequencies, which turn 20, 2, 0.2 and 0.02 times, one stays, one is interpolated and two are divided.
LLAMA3 = replace(LLAMA, rope_scaling="llama3", rope_factor=8.0, rope_original_len=128)
MISTRAL = MistralConfig(**SIZES, window=9)
QWEN2 = Qwen2Config(**SIZES)
QWEN3 = Qwen3Config(**SIZES, head_dim=16)
MIXTRAL = MixtralConfig(**SIZES, experts=5, top_k=2)
QWEN3_MOE = Qwen3MoeConfig(**SIZES, head_dim=16, experts=6, top_k=3)
GPT2 = Gpt2Config(vocab_size=97, dim=48, layers=2, heads=4, seq_len=32)
MODELS = {
    "llama, grouped queries": LLAMA,
    "llama, tied": replace(LLAMA, tie_embeddings=True, kv_heads=6),
    "llama, wide heads": replace(LLAMA, head_dim=12),
    "llama, linear scaling": replace(LLAMA, rope_scaling="linear", rope_factor=4.0),
    "llama, llama3 scaling": LLAMA3,
    "mistral": MISTRAL,
    "mistral, without a window": replace(MISTRAL, window=0),
    "qwen2": QWEN2,
    "qwen2, tied": replace(QWEN2, tie_embeddings=True),
    "qwen3": QWEN3,
    "qwen3, tied, heads as wide as the model": replace(QWEN3, tie_embeddings=True, head_dim=0),
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe, tied": replace(QWEN3_MOE, tie_embeddings=True),
    "gpt2": GPT2,
    "gpt2, untied": replace(GPT2, tie_embeddings=False),
}
ROPE = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE |= {"original_max_position_embeddings": 128}
TOKENS = torch.randint(0, 97, (2, 32), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_transformers_opens_an_export(config: Any, tmp_path: Path) -> None:
    ours = make_model(config)
    hf.export(dict(ours.named_parameters()), config, tmp_path)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)


@pytest.mark.parametrize(("theirs", "expected"), [(64, 64), (16, 32)])
def test_an_export_has_the_positions_and_special_tokens_of_the_original_model(
    theirs: int, expected: int, tmp_path: Path
) -> None:
    original = {"max_position_embeddings": theirs, "bos_token_id": None, "eos_token_id": [7, 9], "vocab_size": 5}
    origin = select_origin(original)
    hf.export(dict(make_model(LLAMA).named_parameters()), LLAMA, tmp_path, origin=origin)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["max_position_embeddings"] == expected
    assert (written["bos_token_id"], written["eos_token_id"]) == (None, [7, 9])
    assert written["vocab_size"] == LLAMA.vocab_size


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_weights_from_transformers_can_be_loaded(config: Any, tmp_path: Path) -> None:
    theirs = AutoModelForCausalLM.from_config(their_config(config)).eval()
    randomise_norms_and_biases(theirs)
    theirs.save_pretrained(tmp_path)
    ours = build_model(config).eval()
    ours.load_state_dict(hf.load(tmp_path, config), strict=not config.tie_embeddings)
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_the_settings_of_a_folder_train_its_model(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "org model"
    their_config(config).save_pretrained(folder)
    assert main(["settings", "--from", str(folder)]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out)
    settings = load(str(file), [])
    # Where it follows from other settings, the file has the width of a head and ours may have 0.
    width = {} if isinstance(config, Gpt2Config) else {"head_dim": config.head_width}
    assert settings.model == replace(config, **width)
    assert settings.name == "org-model"
    assert settings.checkpoint.initial == str(folder)


def test_a_folder_without_settings_has_none_to_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--from", str(tmp_path)]) == 2
    assert "trainer: --from: config.json of" in capsys.readouterr().err
    assert main(["settings", "--from", str(tmp_path / "none")]) == 2
    assert f"trainer: --from: there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    assert main(["settings", "--from", str(tmp_path)]) == 2
    assert "has model_type gemma2; supported: llama, mistral" in capsys.readouterr().err


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


@pytest.mark.parametrize(("first", "second"), [(40_000, 10**9), (10**9, 40_000), (40_000, 20_000)])
def test_an_export_replaces_an_earlier_one(first: int, second: int, tmp_path: Path) -> None:
    """Transformers prefers a single file to the index, so leftovers would be loaded instead of the new weights."""
    for seed, shard_bytes in ((1, first), (2, second)):
        torch.manual_seed(seed)
        state = {name: torch.rand_like(value) for name, value in make_model(LLAMA).named_parameters()}
        hf.export(state, LLAMA, tmp_path, shard_bytes=shard_bytes)
        (tmp_path / "tokenizer.json").write_text("stays")
    again, empty = hf.load(tmp_path, LLAMA), tmp_path / "empty"
    assert all(torch.equal(again[name], state[name]) for name in state)
    hf.export(state, LLAMA, empty, shard_bytes=second)
    names = {path.name for path in tmp_path.iterdir()} - {"empty", "tokenizer.json"}
    assert names == {path.name for path in empty.iterdir()}


def test_a_failed_export_leaves_the_earlier_one_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = dict(make_model(LLAMA).named_parameters())
    hf.export(state, LLAMA, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any) -> Any:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors_file, "write", fail)
        with pytest.raises(OSError, match="no space"):
            hf.export(state, LLAMA, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def move(path: Path, target: Path) -> Path:
        return fail() if path.match("model-00002-*.safetensors") else path.rename(target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", move)
        with pytest.raises(OSError, match="no space"):
            hf.export(state, LLAMA, tmp_path, shard_bytes=40_000)
    assert "config.json" in error_text(tmp_path, LLAMA)


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
        ({}, GPT2, "model.family: gpt2, but FOLDER contains llama; set model.family=llama"),
        ({}, replace(LLAMA, head_dim=10), "model.head_dim: 10, but FOLDER has head_dim 8; set model.head_dim=8"),
        ({}, LLAMA3, "model.rope_scaling: llama3, but FOLDER has rope_type none; set model.rope_scaling=none"),
        ({"rope_parameters": ROPE}, LLAMA, "model.rope_scaling: none, but FOLDER has rope_type llama3; set"),
        ({"rope_parameters": ROPE}, LLAMA3, "model.rope_factor: 8.0, but FOLDER has factor 32.0; set"),
        ({"attention_bias": True}, LLAMA, "FOLDER has attention_bias True; only False is supported"),
        ({"rope_parameters": {"rope_type": "llama3"}}, LLAMA, "config.json of FOLDER lacks factor"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            LLAMA,
            "FOLDER has rope_type yarn; only default or linear or llama3 are supported",
        ),
        ({"rope_scaling": {"type": "dynamic"}, "rope_parameters": None}, LLAMA, "FOLDER has rope_type dynamic; only"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}},
            LLAMA,
            "FOLDER has rope_type per kind of layer; only",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, LLAMA, "FOLDER has partial_rotary_factor 0.5; only 1.0"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            LLAMA,
            "FOLDER has layer_types sliding_attention; only full_attention is supported",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            LLAMA,
            "FOLDER has architectures LlamaForSequenceClassification; only LlamaForCausalLM or LlamaModel are",
        ),
        ({"quantization_config": {"bits": 4}}, LLAMA, "FOLDER has quantization_config, which is not supported"),
        ({"auto_map": {"AutoModel": "mine.Model"}}, LLAMA, "FOLDER has auto_map, which is not supported; use a folder"),
        ({"hidden_size": None}, LLAMA, "config.json of FOLDER lacks hidden_size"),
        (
            {"model_type": "gemma2"},
            LLAMA,
            "FOLDER has model_type gemma2; supported: llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, gpt2; "
            "train another model in Python (docs/trainer.md)",
        ),
        ({"model_type": "mistral"}, LLAMA, "FOLDER has architectures LlamaForCausalLM; only MistralForCausalLM or"),
        (
            {"model_type": "qwen2", "architectures": None, "use_sliding_window": True},
            QWEN2,
            "FOLDER has use_sliding_window True; only False is supported",
        ),
        (
            {"model_type": "mistral", "architectures": None},
            replace(MISTRAL, window=0),
            "model.window: 0, but FOLDER has sliding_window 4096; set model.window=4096",
        ),
        (
            {"model_type": "mixtral", "architectures": None, "sliding_window": 4096},
            MIXTRAL,
            "FOLDER has sliding_window 4096; only None is supported",
        ),
        (
            {"model_type": "qwen3_moe", "architectures": None, "num_experts": 6, "mlp_only_layers": [1]},
            QWEN3_MOE,
            "FOLDER has norm_topk_prob False; only True is supported",
        ),
        (
            {"model_type": "qwen3_moe", "architectures": None, "num_experts": 6, "mlp_only_layers": [1]},
            QWEN3_MOE,
            "FOLDER has mlp_only_layers 1; only [] is supported",
        ),
        (
            {},
            MlpConfig(),
            "model.family: mlp has no Hugging Face format; allowed: llama, mistral, qwen2, qwen3, mixtral",
        ),
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


def test_a_bias_that_chooses_experts_is_not_exported(tmp_path: Path) -> None:
    config = replace(MIXTRAL, balance="bias")
    with pytest.raises(ConfigError, match=r"model.balance: bias, but the Hugging Face format of mixtral has no place"):
        hf.export(dict(make_model(config).named_parameters()), config, tmp_path)


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
    """Write the settings as a user of transformers would, not as our export does."""
    ends = {"vocab_size": 97, "tie_word_embeddings": config.tie_embeddings}
    if isinstance(config, Gpt2Config):
        return AutoConfig.for_model("gpt2", **ends, n_embd=48, n_layer=2, n_head=4, n_positions=32)
    sizes: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "intermediate_size": 80,
    }
    sizes |= {"max_position_embeddings": 32, "num_key_value_heads": config.kv_heads, "rms_norm_eps": config.norm_eps}
    sizes |= {"head_dim": config.head_width} if config.family in ("qwen3", "qwen3_moe", "llama") else {}
    sizes |= {"sliding_window": config.window or None} if config.family == "mistral" else {}
    if isinstance(config, MixtralConfig):
        sizes |= {"num_local_experts": config.experts, "num_experts_per_tok": config.top_k}
    if isinstance(config, Qwen3MoeConfig):
        sizes |= {"intermediate_size": 6144, "moe_intermediate_size": config.ffn, "norm_topk_prob": True}
        sizes |= {"num_experts": config.experts, "num_experts_per_tok": config.top_k}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling != "none":
        rope |= {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
    return AutoConfig.for_model(config.family, **ends, **sizes, rope_parameters=rope)


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        out = model.eval()(TOKENS)
    return getattr(out, "logits", out)


def error_text(folder: Path, config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        hf.load(folder, config)
    return str(caught.value)
