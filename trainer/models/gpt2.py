"""The GPT-2 decoder: pre-normalisation with LayerNorm, learned positions, GELU, biases."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import Gpt2Config
from trainer.models.attention import attend, merge_heads, split_heads
from trainer.models.attention_mask import AttentionMask, DocumentKernel, choose_mask
from trainer.models.bias_gradients import activate, add_and_normalize, can_sum, project
from trainer.models.head import Head, Objective
from trainer.models.projections import project_jointly
from trainer.models.residual import begin_residual
from trainer.models.sequence_part import SequencePart

STREAM_TYPE = torch.bfloat16
"""Type of the residual stream for which norms and biases are differentiated together."""
Multiply = Callable[[torch.Tensor, nn.Linear], torch.Tensor]
"""How the last layer of an attention or feed-forward layer is run."""


def call_layer(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """Return the output of a layer."""
    return layer(x)


class Gpt2(nn.Module):
    """A GPT-2 language model.

    A pipeline stage is this class with `embed` and `positions`, or `norm` and `head`, set to None and the layers of
    other ranks deleted.
    """

    casts_residual = True
    """Whether hidden states are bf16 if the products are."""
    document_kernel: DocumentKernel = "mask"

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.config = config
        self.part: SequencePart | None = None
        """The part of each sequence that this rank computes; None for whole sequences."""
        self.embed: nn.Module | None = nn.Embedding(config.vocab_size, config.dim)
        self.positions: nn.Module | None = nn.Embedding(config.seq_len, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.layers)})
        self.norm: nn.Module | None = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.head: nn.Module | None = Head(config.dim, config.vocab_size)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight

    def forward(
        self,
        x: torch.Tensor,
        documents: torch.Tensor | None = None,
        objective: Objective | None = None,
        targets: torch.Tensor | None = None,
    ) -> torch.Tensor:
        mask = choose_mask(x, documents, self.part, self.document_kernel)
        if self.embed is not None and self.positions is not None:
            positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
            if mask is not None:
                positions = mask.positions
            x = self.dropout(begin_residual(self.embed(x) + self.positions(positions)))
        for block in self.layers.values():
            x = block(x, mask=mask)
        x = self.norm(x) if self.norm is not None else x
        if self.head is None:
            return x
        return self.head(x) if objective is None else self.head(x, objective=objective, targets=targets)

    def init_buffers(self, device: torch.device | str) -> None:
        """Do nothing: GPT-2 has no buffers."""

    def initial(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the mean and standard deviation of a parameter's initial values.

        Layers that write to the residual stream start smaller.
        """
        if len(shape) == 1:
            return (1.0 if name.endswith("norm.weight") else 0.0), 0.0
        if name.endswith(("attention.o.weight", "ffn.down.weight")):
            return 0.0, 0.02 / (2 * self.config.layers) ** 0.5
        return 0.0, 0.02


class Block(nn.Module):
    """A decoder block: attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: torch.Tensor, mask: AttentionMask | None = None) -> torch.Tensor:
        last = (self.attention.o, self.ffn.down)
        if self.attention.dropout.p or x.dtype != STREAM_TYPE or not can_sum(x, last):
            x = x + self.attention(self.attention_norm(x), mask=mask)
            return x + self.ffn(self.ffn_norm(x))
        attended = self.attention(self.attention_norm(x), mask=mask, multiply=project)
        x, normalized = add_and_normalize(x, attended, self.ffn_norm, *(layer.bias for layer in last))
        return x + self.ffn(normalized, multiply=project)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: torch.Tensor, mask: AttentionMask | None = None, multiply: Multiply = call_layer
    ) -> torch.Tensor:
        q, k, v = (split_heads(y, self.head_dim) for y in project_jointly(x, (self.q, self.k, self.v)))
        y = attend(q, k, v, dropout=self.dropout.p if self.training else 0.0, mask=mask)
        return self.dropout(multiply(merge_heads(y), self.o))


class FeedForward(nn.Module):
    """Two linear layers with a GELU in between."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.dim, 4 * config.dim)
        self.down = nn.Linear(4 * config.dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, multiply: Multiply = call_layer) -> torch.Tensor:
        fuses = can_sum(x, (self.up,))
        activated = activate(x, self.up) if fuses else F.gelu(self.up(x), approximate="tanh")
        return self.dropout(multiply(activated, self.down))
