"""How Hugging Face names, fuses and turns the weights and settings of Llama and GPT-2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.config.schema import Gpt2Config, LlamaConfig

# Their setting: ours.
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
# What a file means by leaving a setting out.
LLAMA_UNSAID: dict[str, Any] = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
GPT2_UNSAID: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
# Settings that we have no other value of. A file that leaves one out means this value too.
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
class Piece:
    """One tensor of theirs: ours, stacked along the outputs, then turned where theirs is (inputs, outputs)."""

    theirs: str
    ours: tuple[str, ...]
    turned: bool = False


def pieces(config: LlamaConfig | Gpt2Config) -> list[Piece]:
    found = list(_llama(config) if isinstance(config, LlamaConfig) else _gpt2(config))
    return found if config.tie_embeddings else [*found, Piece("lm_head.weight", ("head.weight",))]


def settings(config: LlamaConfig | Gpt2Config) -> dict[str, Any]:
    """The config.json that transformers opens."""
    # No beginning and end of text: which tokens they are is the tokenizer's to say, and the defaults may not exist.
    common: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "use_cache": True}
    if isinstance(config, LlamaConfig):
        table = {theirs: getattr(config, ours) for theirs, ours in LLAMA_SETTINGS.items()}
        # transformers 4 reads rope_theta, 5 reads rope_parameters.
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}}
        more = {"head_dim": config.dim // config.heads, "max_position_embeddings": config.seq_len}
        family = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return {**family, **table, **rope, **more, **LLAMA_FIXED, **common}
    table = {theirs: getattr(config, ours) for theirs, ours in GPT2_SETTINGS.items()}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    family = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    return {**family, **table, **drops, **GPT2_FIXED, **common}


def _llama(config: LlamaConfig) -> Iterator[Piece]:
    yield Piece("model.embed_tokens.weight", ("embed.weight",))
    for i in range(config.layers):
        for theirs, ours in LLAMA_LAYER.items():
            yield Piece(f"model.layers.{i}.{theirs}.weight", (f"layers.{i}.{ours}.weight",))
    yield Piece("model.norm.weight", ("norm.weight",))


def _gpt2(config: Gpt2Config) -> Iterator[Piece]:
    yield Piece("transformer.wte.weight", ("embed.weight",))
    yield Piece("transformer.wpe.weight", ("positions.weight",))
    for i in range(config.layers):
        for theirs, ours in GPT2_LAYER.items():
            for kind in ("weight", "bias"):
                names = tuple(f"layers.{i}.{part}.{kind}" for part in ours)
                is_matrix = kind == "weight" and not theirs.startswith("ln_")
                yield Piece(f"transformer.h.{i}.{theirs}.{kind}", names, turned=is_matrix)
    for kind in ("weight", "bias"):
        yield Piece(f"transformer.ln_f.{kind}", (f"norm.{kind}",))
