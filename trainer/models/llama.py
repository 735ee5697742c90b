"""The Llama decoder: pre-normalisation with RMSNorm, rotary positions, grouped queries, SwiGLU.

Mistral (sliding window), Qwen2 (biases on queries, keys and values) and Qwen3 (normalised queries and keys) differ from
it only in the attention layer, Mixtral and Qwen3-MoE also in the feed-forward layers.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import LlamaLikeConfig, MoeConfig
from trainer.models.attention import attend, merge_heads, split_heads
from trainer.models.attention_mask import AttentionMask, DocumentKernel, choose_mask
from trainer.models.experts import MixtureOfExperts
from trainer.models.fp8_feed_forward import can_feed_forward, feed_forward
from trainer.models.head import Head, Objective
from trainer.models.projections import project_jointly
from trainer.models.residual import begin_residual
from trainer.models.residual_norm import add_and_normalize, can_fuse
from trainer.models.rotary import Angles, rotary_table, rotate
from trainer.models.sequence_part import SequencePart


class Llama(nn.Module):
    """A Llama, Mistral, Qwen2 or Qwen3 language model, with or without a mixture of experts.

    A pipeline stage is this class with `embed`, or `norm` and `head`, set to None and the layers of other ranks
    deleted.
    """

    casts_residual = True
    """Whether hidden states are bf16 if the products are."""
    document_kernel: DocumentKernel = "mask"

    def __init__(self, config: LlamaLikeConfig) -> None:
        super().__init__()
        self.config = config
        self.part: SequencePart | None = None
        """The part of each sequence that this rank computes; None for whole sequences."""
        self.embed: nn.Module | None = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head: nn.Module | None = Head(config.dim, config.vocab_size)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight
        self.init_buffers(self.embed.weight.device)

    def forward(
        self,
        x: torch.Tensor,
        documents: torch.Tensor | None = None,
        objective: Objective | None = None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        mask = choose_mask(x, documents, self.part, self.document_kernel, self.config.attention_window)
        angles = None if mask is None else self._look_up_angles(mask.positions)
        x = begin_residual(self.embed(x)) if self.embed is not None else x
        for block in self.layers.values():
            x = block(x, mask=mask, angles=angles)
        x = normalize(x, self.norm) if self.norm is not None else x
        if self.head is None:
            return x
        return self.head(x) if objective is None else self.head(x, objective=objective, targets=targets)

    def init_buffers(self, device: torch.device | str) -> None:
        """Compute the table of rotary angles, which all layers share, and reset the balance of experts."""
        cos, sin = rotary_table(self.config, device)
        for block in self.layers.values():
            attention, ffn = cast(Block, block).attention, cast(Block, block).ffn
            attention.cos, attention.sin = cos, sin
            if isinstance(ffn, MixtureOfExperts):
                ffn.router.reset_balance()

    def initial(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the mean and standard deviation of a parameter's initial values.

        Layers that write to the residual stream start smaller.
        """
        if len(shape) == 1:
            return (0.0 if name.endswith("bias") else 1.0), 0.0
        if name.endswith(("attention.o.weight", "ffn.down.weight", "ffn.experts.down.weight")):
            return 0.0, 0.02 / (2 * self.config.layers) ** 0.5
        return 0.0, 0.02

    def _look_up_angles(self, positions: torch.Tensor) -> Angles:
        """Return the angles of positions, once for all layers, which share the table."""
        attention = cast(Block, next(iter(self.layers.values()))).attention
        return Angles(attention.cos, attention.sin, positions)


class Block(nn.Module):
    """A decoder block: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: LlamaLikeConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn = MixtureOfExperts(config) if isinstance(config, MoeConfig) else FeedForward(config)

    def forward(self, x: torch.Tensor, mask: AttentionMask | None = None, angles: Angles | None = None) -> torch.Tensor:
        if not (can_fuse(x, self.attention_norm) and can_fuse(x, self.ffn_norm)):
            x = x + self.attention(normalize(x, self.attention_norm), mask=mask, angles=angles)
            return x + self.ffn(normalize(x, self.ffn_norm))
        x, normalized = add_and_normalize(x, None, self.attention_norm)
        x, normalized = add_and_normalize(x, self.attention(normalized, mask=mask, angles=angles), self.ffn_norm)
        return x + self.ffn(normalized)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped queries."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, config: LlamaLikeConfig) -> None:
        super().__init__()
        self.head_dim, self.window = config.head_width, config.attention_window
        self.q = nn.Linear(config.dim, config.heads * self.head_dim, bias=config.has_qkv_bias)
        self.k = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.has_qkv_bias)
        self.v = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=config.has_qkv_bias)
        self.o = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.has_qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps) if config.has_qk_norm else None
        # These are buffers, not arguments: FSDP casts floating-point arguments to bf16, which is too coarse for angles.
        self.register_buffer("cos", torch.empty(0), persistent=False)
        self.register_buffer("sin", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor, mask: AttentionMask | None = None, angles: Angles | None = None) -> torch.Tensor:
        q, k, v = (split_heads(y, self.head_dim) for y in project_jointly(x, (self.q, self.k, self.v)))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normalize(q, self.q_norm), normalize(k, self.k_norm)
        cos, sin = (self.cos, self.sin) if angles is None else (angles.cos, angles.sin)
        q, k = (rotate(x, cos, sin) for x in (q, k))
        return self.o(merge_heads(attend(q, k, v, window=self.window, mask=mask)))


class FeedForward(nn.Module):
    """The SwiGLU feed-forward layers."""

    def __init__(self, config: LlamaLikeConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn, bias=False)
        self.up = nn.Linear(config.dim, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = (self.gate, self.up, self.down)
        if can_feed_forward(layers):
            return feed_forward(x, layers)
        return self.down(F.silu(self.gate(x)) * self.up(x))


def normalize(x: torch.Tensor, norm: nn.RMSNorm) -> torch.Tensor:
    """Return the normalised values; torch's fused kernel needs them in the type of the weight, fp32 under autocast."""
    return norm(x.to(norm.weight.dtype)).type_as(x)
