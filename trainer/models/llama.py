"""The Llama decoder: pre-normalisation with RMSNorm, rotary positions, grouped queries, SwiGLU, no biases."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.schema import LlamaConfig
from trainer.models.functional import attend, merge_heads, split_heads


class Llama(nn.Module):
    """A Llama language model.

    A pipeline stage is this class with `embed`, or `norm` and `head`, set to None and the layers of other ranks
    deleted.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: nn.Module | None = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head: nn.Module | None = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight
        self.init_buffers(self.embed.weight.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) if self.embed is not None else x
        for block in self.layers.values():
            x = block(x)
        x = self.norm(x) if self.norm is not None else x
        return self.head(x) if self.head is not None else x

    def init_buffers(self, device: torch.device | str) -> None:
        """Compute the table of rotary angles, which all layers share."""
        cos, sin = rotary_table(self.config, device)
        for block in self.layers.values():
            attention = cast(Block, block).attention
            attention.cos, attention.sin = cos, sin

    def initial(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the mean and standard deviation of a parameter's initial values.

        Layers that write to the residual stream start smaller.
        """
        if len(shape) == 1:
            return 1.0, 0.0
        if name.endswith(("attention.o.weight", "ffn.down.weight")):
            return 0.0, 0.02 / (2 * self.config.layers) ** 0.5
        return 0.0, 0.02


class Block(nn.Module):
    """A decoder block: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped queries."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.q = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.k = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)
        # These are buffers, not arguments: FSDP casts floating-point arguments to bf16, which is too coarse for angles.
        self.register_buffer("cos", torch.empty(0), persistent=False)
        self.register_buffer("sin", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = rotate(split_heads(self.q(x), self.head_dim), self.cos, self.sin)
        k = rotate(split_heads(self.k(x), self.head_dim), self.cos, self.sin)
        v = split_heads(self.v(x), self.head_dim)
        return self.o(merge_heads(attend(q, k, v)))


class FeedForward(nn.Module):
    """The SwiGLU feed-forward layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn, bias=False)
        self.up = nn.Linear(config.dim, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotary_table(config: LlamaConfig, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of each position and frequency, (seq_len, head_dim / 2), bitwise equal on every device."""
    head_dim = config.dim // config.heads
    powers = torch.arange(0, head_dim, 2, device="cpu", dtype=torch.float32) / head_dim
    positions = torch.arange(config.seq_len, device="cpu", dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / config.rope_theta**powers)
    return angles.cos().to(device), angles.sin().to(device)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + head_dim / 2) by the angle of its position; Hugging Face pairs them the same way."""
    cos, sin = cos[: x.shape[2]], sin[: x.shape[2]]
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)
