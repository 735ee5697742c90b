"""The settings of each model family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.config.setting import setting

Family = Literal["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt2", "resnet", "mlp"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Settings that every language model has."""

    family: str
    vocab_size: int = setting("tokens in the vocabulary", 128256, low=2)
    dim: int = setting("width of the residual stream", 2048, low=2)
    layers: int = setting("decoder blocks", 16, low=1)
    heads: int = setting("query heads; must divide dim unless head_dim is set", 32, low=1)
    seq_len: int = setting("longest sequence, in tokens", 4096, low=1)
    norm_eps: float = setting("epsilon of the norms", 1e-5, low=0)
    tie_embeddings: bool = setting("share weights between the embedding and the output head", False)


@dataclass(frozen=True, kw_only=True)
class LlamaLikeConfig(DecoderConfig):
    """Settings that Llama and the decoders derived from it share."""

    kv_heads: int = setting("key and value heads; must divide heads", 8, low=1)
    head_dim: int = setting("width of a head, an even number; 0 means dim / heads", 0, low=0)
    ffn: int = setting("hidden width of the feed-forward layers", 8192, low=1)
    rope_theta: float = setting("base of the rotary frequencies", 500000.0, low=1)
    rope_scaling: Literal["none", "linear", "llama3"] = setting(
        "how rotary positions are stretched for longer sequences: all frequencies (linear), or only the low ones, "
        "as in Llama 3.1 (llama3)",
        "none",
    )
    rope_factor: float = setting("rope_scaling: factor by which frequencies are divided", 1.0, low=1)
    rope_low_freq_factor: float = setting(
        "llama3: frequencies with fewer turns in rope_original_len tokens are divided by rope_factor", 1.0, low=0
    )
    rope_high_freq_factor: float = setting(
        "llama3: frequencies with more turns in rope_original_len tokens stay as they are", 4.0, low=0
    )
    rope_original_len: int = setting("llama3: longest sequence before the stretching, in tokens", 8192, low=1)

    @property
    def head_width(self) -> int:
        """Return the width of a head."""
        return self.head_dim or self.dim // self.heads

    @property
    def has_qkv_bias(self) -> bool:
        """Return whether the projections to queries, keys and values have biases."""
        return False

    @property
    def has_qk_norm(self) -> bool:
        """Return whether each head's queries and keys are normalised."""
        return False

    @property
    def attention_window(self) -> int:
        """Return the number of tokens that a token sees, itself included; 0 means all tokens before it."""
        return 0


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(LlamaLikeConfig):
    """Settings of a Llama decoder."""

    family: Literal["llama"] = setting(
        "Llama decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU", "llama"
    )


@dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaLikeConfig):
    """Settings of a Mistral decoder."""

    family: Literal["mistral"] = setting("Mistral decoder: Llama with an optional sliding attention window", "mistral")
    vocab_size: int = setting("tokens in the vocabulary", 32000, low=2)
    rope_theta: float = setting("base of the rotary frequencies", 10000.0, low=1)
    window: int = setting("tokens that a token sees, itself included; 0 means all tokens before it", 0, low=0)

    @property
    def attention_window(self) -> int:
        """Return the number of tokens that a token sees, itself included; 0 means all tokens before it."""
        return self.window


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(LlamaLikeConfig):
    """Settings of a Qwen2 or Qwen2.5 decoder."""

    family: Literal["qwen2"] = setting(
        "Qwen2 and Qwen2.5 decoder: Llama with biases on queries, keys and values", "qwen2"
    )
    vocab_size: int = setting("tokens in the vocabulary", 152064, low=2)
    rope_theta: float = setting("base of the rotary frequencies", 1000000.0, low=1)
    norm_eps: float = setting("epsilon of the norms", 1e-6, low=0)

    @property
    def has_qkv_bias(self) -> bool:
        """Return whether the projections to queries, keys and values have biases."""
        return True


@dataclass(frozen=True, kw_only=True)
class Qwen3Config(LlamaLikeConfig):
    """Settings of a dense Qwen3 decoder."""

    family: Literal["qwen3"] = setting("dense Qwen3 decoder: Llama with normalised queries and keys", "qwen3")
    vocab_size: int = setting("tokens in the vocabulary", 151936, low=2)
    head_dim: int = setting("width of a head, an even number; 0 means dim / heads", 128, low=0)
    rope_theta: float = setting("base of the rotary frequencies", 1000000.0, low=1)
    norm_eps: float = setting("epsilon of the norms", 1e-6, low=0)

    @property
    def has_qk_norm(self) -> bool:
        """Return whether each head's queries and keys are normalised."""
        return True


@dataclass(frozen=True, kw_only=True)
class MoeConfig(LlamaLikeConfig):
    """Settings that decoders with a mixture of experts share."""

    ffn: int = setting("hidden width of each expert", 14336, low=1)
    experts: int = setting("experts in each layer", 8, low=2)
    top_k: int = setting("experts that each token uses", 2, low=1)
    balance: Literal["loss", "bias", "none"] = setting(
        "how the load of the experts is balanced: by an additional loss, or by a bias on the choice of experts, "
        "adjusted after each step",
        "loss",
    )
    balance_loss: float = setting("balance=loss: weight of the loss that balances the experts", 0.02, low=0)
    balance_rate: float = setting("balance=bias: change of an expert's bias in a step", 0.001, low=0)


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(MoeConfig):
    """Settings of a Mixtral decoder."""

    family: Literal["mixtral"] = setting("Mixtral decoder: Mistral with a mixture of experts in each layer", "mixtral")
    vocab_size: int = setting("tokens in the vocabulary", 32000, low=2)
    rope_theta: float = setting("base of the rotary frequencies", 1000000.0, low=1)


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig(MoeConfig):
    """Settings of a Qwen3 decoder with a mixture of experts."""

    family: Literal["qwen3_moe"] = setting("Qwen3 decoder with a mixture of experts in each layer", "qwen3_moe")
    vocab_size: int = setting("tokens in the vocabulary", 151936, low=2)
    kv_heads: int = setting("key and value heads; must divide heads", 4, low=1)
    head_dim: int = setting("width of a head, an even number; 0 means dim / heads", 128, low=0)
    ffn: int = setting("hidden width of each expert", 768, low=1)
    experts: int = setting("experts in each layer", 128, low=2)
    top_k: int = setting("experts that each token uses", 8, low=1)
    balance_loss: float = setting("balance=loss: weight of the loss that balances the experts", 0.001, low=0)
    rope_theta: float = setting("base of the rotary frequencies", 1000000.0, low=1)
    norm_eps: float = setting("epsilon of the norms", 1e-6, low=0)

    @property
    def has_qk_norm(self) -> bool:
        """Return whether each head's queries and keys are normalised."""
        return True


@dataclass(frozen=True, kw_only=True)
class Gpt2Config(DecoderConfig):
    """Settings of a GPT-2 decoder."""

    family: Literal["gpt2"] = setting("GPT-2 decoder: LayerNorm, learned positions, GELU", "gpt2")
    vocab_size: int = setting("tokens in the vocabulary (50257, padded to a multiple of 64)", 50304, low=2)
    dim: int = setting("width of the residual stream", 768, low=2)
    layers: int = setting("decoder blocks", 12, low=1)
    heads: int = setting("attention heads; must divide dim", 12, low=1)
    seq_len: int = setting("longest sequence, in tokens", 1024, low=1)
    dropout: float = setting("fraction of activations dropped during training", 0.0, low=0, high=0.9)
    tie_embeddings: bool = setting("share weights between the embedding and the output head", True)


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Settings of a residual convolutional network."""

    family: Literal["resnet"] = setting("residual convolutional network", "resnet")
    depth: Literal[18, 34, 50, 101, 152] = setting("number of layers, as in the ResNet paper", 50)
    width: int = setting("channels of the first stage", 64, low=4)
    classes: int = setting("number of classes", 1000, low=2)
    image_size: int = setting("height and width of the input images, in pixels", 224, low=8)


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """Settings of a classifier of fully connected layers."""

    family: Literal["mlp"] = setting("classifier of fully connected layers", "mlp")
    inputs: int = setting("values per sample", 784, low=1)
    hidden: tuple[int, ...] = setting("widths of the hidden layers", (512, 512))
    classes: int = setting("number of classes", 10, low=2)


ModelConfig = (
    LlamaConfig
    | MistralConfig
    | Qwen2Config
    | Qwen3Config
    | MixtralConfig
    | Qwen3MoeConfig
    | Gpt2Config
    | ResNetConfig
    | MlpConfig
)
