"""What is trained, as sizes: enough to count operations, bytes and messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Feed-forward parts of which each token uses a few."""

    count: int
    per_token: int
    ffn: int
    """Width inside one expert."""
    shared: int = 0
    """Experts that every token uses."""
    dense_layers: int = 0
    """First layers that have one plain feed-forward part instead."""


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values come out of narrow vectors."""

    query: int
    """Width of the queries' vector; 0 where queries are made directly."""
    key_value: int
    rope: int
    """Width per head that carries positions."""
    nope: int
    """Width per head that does not."""
    value: int
    """Width per head of values."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    """Three matrices in the feed-forward part instead of two."""
    vocab: int
    seq: int
    """Tokens of a sample."""
    tied: bool = False
    head_width: int = 0
    """Of one head; 0 is hidden / heads."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    flash: bool = True
    """Attention never writes its seq x seq matrix."""


@dataclass(frozen=True, kw_only=True)
class SequentialModel:
    """Anything that is no transformer (ResNet, MLP): one entry per layer."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A matrix product (a convolution is one) per sample: (rows x inner) times (inner x columns)."""

    rows: int
    inner: int
    columns: int
    weights: int
    kept: int
    """Numbers that backward needs of it, per sample."""
    moved: int
    """Numbers read and written beside the product, per sample: norms, activations, additions."""


Model = Transformer | SequentialModel
