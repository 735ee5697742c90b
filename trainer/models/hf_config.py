"""The settings of a model in config.json of Hugging Face transformers: read, compared with ours, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import DecoderConfig, Gpt2Config, LlamaLikeConfig, MistralConfig, MoeConfig

WHERE = "checkpoint.initial"


@dataclass(frozen=True)
class Format:
    """The config.json of one model family."""

    architecture: str
    settings: dict[str, str]
    """The names of settings in config.json, and our names for them."""
    defaults: dict[str, Any]
    """The defaults of transformers for settings that a config.json leaves out."""
    fixed: dict[str, Any]
    """Settings that our models support only with this value, which is also the default in config.json."""


@dataclass(frozen=True)
class TheirSetting:
    """The value of one of our settings in a config.json, under the name that it has there."""

    name: str
    value: Any


LLAMA_SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
LLAMA_DEFAULTS: dict[str, Any] = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
LLAMA_FIXED: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
QWEN_FIXED: dict[str, Any] = {"hidden_act": "silu", "use_sliding_window": False}
_QWEN3_MOE_SETTINGS = {theirs: ours for theirs, ours in LLAMA_SETTINGS.items() if theirs != "intermediate_size"}
FORMATS = {
    "llama": Format("LlamaForCausalLM", LLAMA_SETTINGS, LLAMA_DEFAULTS, LLAMA_FIXED),
    "mistral": Format(
        "MistralForCausalLM",
        {**LLAMA_SETTINGS, "sliding_window": "window"},
        {**LLAMA_DEFAULTS, "sliding_window": 4096},
        {"hidden_act": "silu"},
    ),
    "qwen2": Format("Qwen2ForCausalLM", LLAMA_SETTINGS, LLAMA_DEFAULTS, QWEN_FIXED),
    "qwen3": Format(
        "Qwen3ForCausalLM",
        LLAMA_SETTINGS,
        {**LLAMA_DEFAULTS, "head_dim": 128},
        {**QWEN_FIXED, "attention_bias": False},
    ),
    "mixtral": Format(
        "MixtralForCausalLM",
        {**LLAMA_SETTINGS, "num_local_experts": "experts", "num_experts_per_tok": "top_k"},
        {**LLAMA_DEFAULTS, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
        {"hidden_act": "silu", "sliding_window": None, "router_jitter_noise": 0.0},
    ),
    "qwen3_moe": Format(
        "Qwen3MoeForCausalLM",
        {
            **_QWEN3_MOE_SETTINGS,
            "moe_intermediate_size": "ffn",
            "num_experts": "experts",
            "num_experts_per_tok": "top_k",
        },
        {
            **LLAMA_DEFAULTS,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        {
            **QWEN_FIXED,
            "attention_bias": False,
            "norm_topk_prob": True,
            # Every layer is a mixture of experts.
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "gpt2": Format(
        "GPT2LMHeadModel",
        {
            "vocab_size": "vocab_size",
            "n_embd": "dim",
            "n_layer": "layers",
            "n_head": "heads",
            "n_positions": "seq_len",
            "layer_norm_epsilon": "norm_eps",
            "tie_word_embeddings": "tie_embeddings",
        },
        {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        {
            "activation_function": "gelu_new",
            "n_inner": None,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            "add_cross_attention": False,
        },
    ),
}
# The names of rotary scaling in config.json, and ours.
ROPE_SETTINGS = {
    "rope_type": "rope_scaling",
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "rope_original_len",
}
ROPE_TYPES = {"default": 1, "linear": 2, "llama3": 5}
"""The supported types of rotary scaling, and how many of ROPE_SETTINGS each has."""
ORIGIN_SETTINGS = ("max_position_embeddings", "bos_token_id", "eos_token_id")
"""Settings of a model that training does not need, but those who use the trained model do."""
UNSUPPORTED = ("quantization_config", "auto_map")
"""Settings that change what the weights mean, whatever their value: quantised weights, and code in the folder."""


def read_config_json(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder, or raise ConfigError."""
    if not folder.is_dir():
        raise ConfigError(
            [ConfigProblem(WHERE, f"there is no folder {folder}", "give a folder that transformers wrote")]
        )
    try:
        tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        reason = f"config.json of {folder} cannot be read ({error})"
        raise ConfigError([ConfigProblem(WHERE, reason, "give a folder that transformers wrote")]) from error
    return tree


def read_settings(tree: dict[str, Any], folder: str) -> dict[str, TheirSetting]:
    """Return the settings of a config.json by our names; raise ConfigError with every part that is not supported."""
    family = tree.get("model_type")
    if family not in FORMATS:
        message = f"{folder} has model_type {family}"
        fix = f"supported: {', '.join(FORMATS)}; train another model in Python (docs/trainer.md)"
        raise ConfigError([ConfigProblem(WHERE, message, fix)])
    layout = FORMATS[family]
    # Files from before 2023 have null for a default; only a window may be null.
    stated = {name: value for name, value in tree.items() if value is not None or name == "sliding_window"}
    if family == "qwen3_moe" and "num_local_experts" in stated:
        # The name that transformers 5 writes.
        stated["num_experts"] = stated["num_local_experts"]
    flat = {**layout.defaults, **stated, **_read_rope(tree)}
    problems = _list_unsupported(flat, family, folder)
    settings = {"family": TheirSetting("model_type", family)}
    for theirs, ours in _list_names(layout, flat).items():
        if theirs not in flat:
            flat[theirs] = _derive(theirs, flat)
        if flat[theirs] is None and theirs != "sliding_window":
            problems.append(ConfigProblem(WHERE, f"config.json of {folder} lacks {theirs}", "add it"))
        settings[ours] = TheirSetting(theirs, _translate(theirs, flat[theirs]))
    if problems:
        raise ConfigError(problems)
    return settings


def list_differences(theirs: dict[str, TheirSetting], config: DecoderConfig, folder: str) -> list[ConfigProblem]:
    """Return the settings of a run that differ from those of a folder."""
    family = theirs["family"].value
    if family != config.family:
        message = f"{config.family}, but {folder} contains {family}"
        return [ConfigProblem("model.family", message, f"set model.family={family} and the settings of that model")]
    problems = []
    for name, setting in theirs.items():
        # A head_dim of 0 stands for a width that follows from other settings.
        ours, value = getattr(config, "head_width" if name == "head_dim" else name), setting.value
        if value != ours:
            message = f"{ours}, but {folder} has {setting.name} {value}"
            text = value if isinstance(value, str) else json.dumps(value)
            problems.append(ConfigProblem(f"model.{name}", message, f"set model.{name}={text}"))
    return problems


def select_origin(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json that an export takes over, because the run has no setting for them."""
    return {name: tree[name] for name in ORIGIN_SETTINGS if tree.get(name) is not None}


def make_config_json(config: DecoderConfig, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json that transformers expects; `origin` is from the model that the run started from."""
    layout = FORMATS[config.family]
    tree: dict[str, Any] = {"model_type": config.family, "architectures": [layout.architecture]}
    tree |= {theirs: getattr(config, ours) for theirs, ours in layout.settings.items()}
    if isinstance(config, LlamaLikeConfig):
        # Training on shorter sequences does not take away the positions that the model had before.
        longest = max(config.seq_len, origin.get("max_position_embeddings", 0))
        tree |= {"head_dim": config.head_width, "max_position_embeddings": longest}
        tree |= _make_rope(config)
    if isinstance(config, MistralConfig):
        tree["sliding_window"] = config.window or None
    if isinstance(config, MoeConfig):
        tree["router_aux_loss_coef"] = config.balance_loss
    if isinstance(config, Gpt2Config):
        tree |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    # A new model's beginning and end of text belong to its tokenizer. Without the entries, transformers would assume
    # token ids that may not exist in the vocabulary.
    tokens = {name: origin.get(name) for name in ("bos_token_id", "eos_token_id")}
    return {**tree, **layout.fixed, **tokens, "use_cache": True}


def _make_rope(config: LlamaLikeConfig) -> dict[str, Any]:
    """Return the settings of rotary positions: transformers 5 reads rope_parameters, 4 the other two."""
    rope_type = "default" if config.rope_scaling == "none" else config.rope_scaling
    names = list(ROPE_SETTINGS.items())[1 : ROPE_TYPES[rope_type]]
    scaling = {"rope_type": rope_type, **{theirs: getattr(config, ours) for theirs, ours in names}}
    old = {"rope_scaling": scaling} if names else {}
    return {"rope_parameters": {**scaling, "rope_theta": config.rope_theta}, "rope_theta": config.rope_theta, **old}


def _read_rope(tree: dict[str, Any]) -> dict[str, Any]:
    rope = tree.get("rope_parameters") or tree.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(part, dict) for part in rope.values()):
        # Models whose kinds of layers have different positions have one section for each kind.
        rope_type = "per kind of layer"
    elif rope_type in ROPE_TYPES and rope.get("factor") == 1:
        rope_type = "default"
    return {**rope, "rope_type": rope_type}


def _list_names(layout: Format, flat: dict[str, Any]) -> dict[str, str]:
    if "rope_theta" not in layout.settings:
        return layout.settings
    return layout.settings | dict(list(ROPE_SETTINGS.items())[: ROPE_TYPES.get(flat["rope_type"], 0)])


def _translate(name: str, value: Any) -> Any:
    """Return our value for theirs: we write 0 for no window, and none for rotary positions without scaling."""
    if name == "sliding_window":
        return value or 0
    return "none" if name == "rope_type" and value == "default" else value


def _derive(name: str, flat: dict[str, Any]) -> Any:
    """Return the value of a setting that follows from others, as in transformers; None if it does not."""
    heads, dim = flat.get("num_attention_heads"), flat.get("hidden_size")
    if name == "num_key_value_heads":
        return heads
    if name == "head_dim" and isinstance(heads, int) and isinstance(dim, int) and heads > 0:
        return dim // heads
    if name == "original_max_position_embeddings":
        return flat.get("max_position_embeddings")
    return None


def _list_unsupported(flat: dict[str, Any], family: str, folder: str) -> list[ConfigProblem]:
    """Return settings that our models do not implement, with which even correct weights would give wrong results."""
    layout = FORMATS[family]
    base_model = layout.architecture.replace("ForCausalLM", "Model").replace("LMHeadModel", "Model")
    kind = "sliding_attention" if family == "mistral" and flat["sliding_window"] else "full_attention"
    allowed: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in layout.fixed.items()}
    allowed |= {"partial_rotary_factor": (1.0,), "layer_types": (kind,)}
    allowed |= {"architectures": (layout.architecture, base_model), "rope_type": tuple(ROPE_TYPES)}
    if family == "gpt2":
        # Old files have n_inner as a number even if it is the default.
        allowed["n_inner"] = (4 * flat.get("n_embd", 0),)
    problems = []
    for name, values in allowed.items():
        stated = flat.get(name, values[0])
        for value in sorted(set(stated)) if isinstance(stated, list) else [stated]:
            if value not in values:
                options = " or ".join(str(option) for option in values)
                verb = "is" if len(values) == 1 else "are"
                problems.append(
                    ConfigProblem(WHERE, f"{folder} has {name} {value}", f"only {options} {verb} supported")
                )
    return problems + [
        ConfigProblem(WHERE, f"{folder} has {name}, which is not supported", "use a folder without it")
        for name in UNSUPPORTED
        if name in flat
    ]
