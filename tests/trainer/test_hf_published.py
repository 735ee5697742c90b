"""The config.json files of published models are understood, and the presets have their settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.config.load import load
from trainer.config.yaml_text import parse_yaml
from trainer.models.hf_config import list_differences, read_settings
from trainer.models.hf_settings import render_yaml

# The settings that matter for the model, as the files of the first releases have them: in the form of transformers 4.
# Compared with copies of the published files in public repositories: Llama 3.1 8B, Qwen2.5 7B and Qwen3 4B to 32B in
# github.com/citsjtu2020/LLM-Prof (sglang/Model_Config.md, 8434c8d), Llama 3.2 1B in
# github.com/kevinstephano/thunder_model_blocks (hf_llama/llama_config.py). Mistral 7B v0.1 and Qwen3 0.6B were
# compared with copies that name huggingface.co/mistralai/Mistral-7B-v0.1 and huggingface.co/Qwen/Qwen3-0.6B as source.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
LLAMA3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama3.1-8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "rope_scaling": {**LLAMA3_SCALING, "factor": 8.0},
        "tie_word_embeddings": False,
    },
    "llama3.2-1b": {
        **LLAMA,
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "rope_scaling": {**LLAMA3_SCALING, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "mistral-7b": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "qwen3-30b-a3b": {
        **QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
    },
    "qwen2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "qwen3-0.6b": {
        **QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        **QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        **QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "tie_word_embeddings": False,
    },
    "qwen3-14b": {
        **QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "tie_word_embeddings": False,
    },
    "qwen3-32b": {
        **QWEN3,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_hidden_layers": 64,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_has_the_settings_of_the_published_model(preset: str) -> None:
    config: Any = load(preset, []).model
    assert list_differences(read_settings(PUBLISHED[preset], "FOLDER"), config, "FOLDER") == []


def test_the_third_version_of_mistral_has_other_settings() -> None:
    third = {**PUBLISHED["mistral-7b"], "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768}
    config: Any = load("mistral-7b", ["model.vocab_size=32768", "model.rope_theta=1e6", "model.window=0"]).model
    assert list_differences(read_settings(third, "FOLDER"), config, "FOLDER") == []


def test_settings_of_a_folder_say_that_the_model_allows_longer_sequences(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 16}
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **sizes, "tie_word_embeddings": True}))
    text = render_yaml(tmp_path)
    assert "\n  seq_len: 4096  # of at most 40960, which rarely fit a GPU\n" in text
    assert parse_yaml(text)["model"]["seq_len"] == 4096
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **sizes, "max_position_embeddings": 4096}))
    assert "\n  seq_len: 4096\n" in render_yaml(tmp_path)
