"""The names of weights and settings in Hugging Face transformers, and the weights it fuses and transposes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.config.schema import Gpt2Config, LlamaConfig

# The names of settings in config.json, and our names for them.
LLAMA_SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
GPT2_SETTINGS = {
    "vocab_size": "vocab_size",
    "n_embd": "dim",
    "n_layer": "layers",
    "n_head": "heads",
    "n_positions": "seq_len",
    "layer_norm_epsilon": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
}
# The defaults of transformers for settings that a config.json leaves out.
LLAMA_DEFAULTS: dict[str, Any] = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
GPT2_DEFAULTS: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
# Settings that our models support only with this value, which is also the default in config.json.
LLAMA_FIXED: dict[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
GPT2_FIXED: dict[str, Any] = {
    "activation_function": "gelu_new",
    "n_inner": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
LLAMA_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn.gate",
    "mlp.up_proj": "ffn.up",
    "mlp.down_proj": "ffn.down",
}
GPT2_LAYER = {
    "ln_1": ("attention_norm",),
    "attn.c_attn": ("attention.q", "attention.k", "attention.v"),
    "attn.c_proj": ("attention.o",),
    "ln_2": ("ffn_norm",),
    "mlp.c_fc": ("ffn.up",),
    "mlp.c_proj": ("ffn.down",),
}


@dataclass(frozen=True)
class TensorMapping:
    """A tensor of a Hugging Face file and our parameters that it contains, stacked along the output dimension."""

    theirs: str
    ours: tuple[str, ...]
    is_transposed: bool = False
    """Whether the file stores it as (inputs, outputs)."""


def map_tensors(config: LlamaConfig | Gpt2Config) -> list[TensorMapping]:
    """Return the tensors that a Hugging Face file of the model holds."""
    mappings = list(_map_llama(config) if isinstance(config, LlamaConfig) else _map_gpt2(config))
    return mappings if config.tie_embeddings else [*mappings, TensorMapping("lm_head.weight", ("head.weight",))]


def make_config_json(config: LlamaConfig | Gpt2Config) -> dict[str, Any]:
    """Return the config.json that transformers expects."""
    # Beginning and end of text belong to the tokenizer, and the default token ids may not exist in the vocabulary.
    common: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "use_cache": True}
    if isinstance(config, LlamaConfig):
        table = {theirs: getattr(config, ours) for theirs, ours in LLAMA_SETTINGS.items()}
        # transformers 4 reads rope_theta, 5 reads rope_parameters.
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}
        sizes = {"head_dim": config.dim // config.heads, "max_position_embeddings": config.seq_len}
        family = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return {**family, **table, **rope, **sizes, **LLAMA_FIXED, **common}
    table = {theirs: getattr(config, ours) for theirs, ours in GPT2_SETTINGS.items()}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    family = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    return {**family, **table, **drops, **GPT2_FIXED, **common}


def _map_llama(config: LlamaConfig) -> Iterator[TensorMapping]:
    yield TensorMapping("model.embed_tokens.weight", ("embed.weight",))
    for i in range(config.layers):
        for theirs, ours in LLAMA_LAYER.items():
            yield TensorMapping(f"model.layers.{i}.{theirs}.weight", (f"layers.{i}.{ours}.weight",))
    yield TensorMapping("model.norm.weight", ("norm.weight",))


def _map_gpt2(config: Gpt2Config) -> Iterator[TensorMapping]:
    yield TensorMapping("transformer.wte.weight", ("embed.weight",))
    yield TensorMapping("transformer.wpe.weight", ("positions.weight",))
    for i in range(config.layers):
        for theirs, ours in GPT2_LAYER.items():
            for kind in ("weight", "bias"):
                names = tuple(f"layers.{i}.{part}.{kind}" for part in ours)
                is_matrix = kind == "weight" and not theirs.startswith("ln_")
                yield TensorMapping(f"transformer.h.{i}.{theirs}.{kind}", names, is_transposed=is_matrix)
    for kind in ("weight", "bias"):
        yield TensorMapping(f"transformer.ln_f.{kind}", (f"norm.{kind}",))
