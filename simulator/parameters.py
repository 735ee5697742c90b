"""Count the parameters of a model by component."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from simulator.model import Experts, Layer, Model, SequentialModel, Transformer
from trainer.config.schema import OptimizerConfig
from trainer.optimizers.sizes import average_moment_bytes
from trainer.state_formats import FORMAT_BYTES, count_master_bytes

ADAMW = OptimizerConfig()


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """Number of parameters of each component of a model."""

    attention: int
    """Attention of one layer, including its norms."""
    dense: int
    """One dense feed-forward block."""
    shared: int
    """Router and shared experts of one mixture layer."""
    expert: int
    """One routed expert."""
    embedding: int
    head: int
    """Output head; 0 if it is tied to the embedding."""
    layers: int
    mixtures: int
    """Layers whose feed-forward block is a mixture of experts."""
    experts: int
    """Routed experts of one mixture layer."""

    @property
    def total(self) -> int:
        plain = self.layers - self.mixtures
        layers = self.layers * self.attention + plain * self.dense + self.mixtures * self.shared
        return layers + self.mixtures * self.experts * self.expert + self.embedding + self.head


def head_width(model: Transformer) -> int:
    """Return the width of one attention head."""
    return model.head_width or model.hidden // model.heads


def feed_forward_matrices(model: Transformer) -> int:
    """Return the number of matrices in a feed-forward block."""
    return 3 if model.gated else 2


@lru_cache(maxsize=256)
def count_parameters(model: Model) -> ParameterCounts:
    """Count the parameters of a model."""
    if isinstance(model, SequentialModel):
        return _count_sequential(model.layers)
    experts = model.experts or Experts(count=0, per_token=0, ffn=0, dense_layers=model.layers)
    mixtures = max(0, model.layers - experts.dense_layers)
    return ParameterCounts(
        attention=_attention(model) + 2 * model.hidden,
        dense=feed_forward_matrices(model) * model.hidden * model.ffn,
        shared=experts.count * model.hidden
        + experts.shared * feed_forward_matrices(model) * model.hidden * experts.ffn,
        expert=feed_forward_matrices(model) * model.hidden * experts.ffn,
        embedding=model.vocab * model.hidden,
        head=0 if model.tied else model.vocab * model.hidden,
        layers=model.layers,
        mixtures=mixtures,
        experts=experts.count,
    )


def list_projections(model: Transformer) -> list[tuple[int, int, bool]]:
    """Return (inputs, outputs, split by columns) of the attention projections; the last is split by rows."""
    if model.latent is None:
        width = head_width(model)
        into = (model.heads + 2 * model.kv_heads) * width
        return [(model.hidden, into, True), (model.heads * width, model.hidden, False)]
    latent = model.latent
    query = model.heads * (latent.nope + latent.rope)
    queries = [(latent.query, query, True)] if latent.query else [(model.hidden, query, True)]
    down = latent.query + latent.key_value + latent.rope
    return [
        (model.hidden, down, False),
        *queries,
        (latent.key_value, model.heads * (latent.nope + latent.value), True),
        (model.heads * latent.value, model.hidden, False),
    ]


def moment_bytes(model: Model, optimizer: OptimizerConfig) -> float:
    """Return the bytes of the optimizer's moments per parameter."""
    counts = count_parameters(model)
    return average_moment_bytes(optimizer, (counts.embedding + counts.head) / max(1, counts.total))


def checkpoint_gb(model: Model, optimizer: OptimizerConfig = ADAMW) -> float:
    """Return the size of a checkpoint in GB (1e9 bytes): weights, their fp32 copies and moments."""
    each = FORMAT_BYTES[optimizer.weights] + count_master_bytes(optimizer, 1) + moment_bytes(model, optimizer)
    return 1e-9 * each * count_parameters(model).total


def _attention(model: Transformer) -> int:
    return sum(inputs * outputs for inputs, outputs, _ in list_projections(model))


def _count_sequential(layers: tuple[Layer, ...]) -> ParameterCounts:
    total = sum(layer.weights for layer in layers)
    absent = {"dense": 0, "shared": 0, "expert": 0, "embedding": 0, "head": 0, "mixtures": 0, "experts": 0}
    return ParameterCounts(attention=total, layers=1, **absent)
