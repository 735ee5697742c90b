"""The dimensions of a model: enough to count operations, bytes and messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: feed-forward blocks of which each token uses a few."""

    count: int
    per_token: int
    """Routed experts per token."""
    ffn: int
    """Inner width of an expert."""
    shared: int = 0
    """Experts that every token uses."""
    dense_layers: int = 0
    """Leading layers that have a dense feed-forward block instead."""


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values are projected up from low-rank vectors."""

    query: int
    """Rank of the query projection; 0 if queries are projected directly."""
    key_value: int
    """Rank of the joint key and value projection."""
    rope: int
    """Width per head with rotary positions."""
    nope: int
    """Width per head without positions."""
    value: int
    """Width of a head's values."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder-only transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    """Whether the feed-forward block has three matrices instead of two."""
    vocab: int
    seq: int
    """Tokens per sample."""
    tied: bool = False
    """Whether the output head shares the embedding's weights."""
    head_width: int = 0
    """Width of an attention head; 0 means hidden / heads."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    flash: bool = True
    """Whether attention avoids writing its seq x seq matrix."""


@dataclass(frozen=True, kw_only=True)
class SequentialModel:
    """A model other than a transformer (ResNet, MLP), as a list of layers."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer as a matrix product per sample, (rows x inner) times (inner x columns); convolutions are products too."""

    rows: int
    inner: int
    columns: int
    weights: int
    saved: int
    """Numbers saved for backward, per sample."""
    moved: int
    """Numbers read and written outside the product, per sample: norms, activations, additions."""


Model = Transformer | SequentialModel
