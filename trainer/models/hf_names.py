"""The names of weights in Hugging Face transformers, and the weights it fuses and transposes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainer.config.models import Gpt2Config, LlamaLikeConfig, MoeConfig

LLAMA_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.q",
    "self_attn.k_proj": "attention.k",
    "self_attn.v_proj": "attention.v",
    "self_attn.o_proj": "attention.o",
    "post_attention_layernorm": "ffn_norm",
}
DENSE_LAYER = {"mlp.gate_proj": "ffn.gate", "mlp.up_proj": "ffn.up", "mlp.down_proj": "ffn.down"}
ROUTERS = {"mixtral": "block_sparse_moe.gate", "qwen3_moe": "mlp.gate"}
EXPERTS = {
    "mixtral": {
        "block_sparse_moe.experts.{}.w1": "ffn.experts.gate",
        "block_sparse_moe.experts.{}.w3": "ffn.experts.up",
        "block_sparse_moe.experts.{}.w2": "ffn.experts.down",
    },
    "qwen3_moe": {
        "mlp.experts.{}.gate_proj": "ffn.experts.gate",
        "mlp.experts.{}.up_proj": "ffn.experts.up",
        "mlp.experts.{}.down_proj": "ffn.experts.down",
    },
}
"""The layers of each expert, by family: transformers' names in a file, and our tensors that hold all experts."""
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
    expert: int | None = None
    """The expert whose weight it is; our parameter holds the weights of all experts."""


def map_tensors(config: LlamaLikeConfig | Gpt2Config) -> list[TensorMapping]:
    """Return the tensors that a Hugging Face file of the model holds."""
    mappings = list(_map_llama(config) if isinstance(config, LlamaLikeConfig) else _map_gpt2(config))
    return mappings if config.tie_embeddings else [*mappings, TensorMapping("lm_head.weight", ("head.weight",))]


def _map_llama(config: LlamaLikeConfig) -> Iterator[TensorMapping]:
    yield TensorMapping("model.embed_tokens.weight", ("embed.weight",))
    is_mixture = isinstance(config, MoeConfig)
    layer = LLAMA_LAYER | ({ROUTERS[config.family]: "ffn.router"} if is_mixture else DENSE_LAYER)
    tensors = [(f"{theirs}.weight", f"{ours}.weight") for theirs, ours in layer.items()]
    if config.has_qkv_bias:
        tensors += [(f"self_attn.{part}_proj.bias", f"attention.{part}.bias") for part in "qkv"]
    if config.has_qk_norm:
        tensors += [(f"self_attn.{part}_norm.weight", f"attention.{part}_norm.weight") for part in "qk"]
    for i in range(config.layers):
        for theirs, ours in tensors:
            yield TensorMapping(f"model.layers.{i}.{theirs}", (f"layers.{i}.{ours}",))
        if isinstance(config, MoeConfig):
            yield from _map_experts(config, i)
    yield TensorMapping("model.norm.weight", ("norm.weight",))


def _map_experts(config: MoeConfig, layer: int) -> Iterator[TensorMapping]:
    for expert in range(config.experts):
        for theirs, ours in EXPERTS[config.family].items():
            name = f"model.layers.{layer}.{theirs.format(expert)}.weight"
            yield TensorMapping(name, (f"layers.{layer}.{ours}.weight",), expert=expert)


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
