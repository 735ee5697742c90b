"""More than a model can need, from its numbers alone: where even that fits, there is nothing to measure. No torch."""

from __future__ import annotations

from trainer.auto.memory import WEIGHT, Sizes
from trainer.config.schema import Config, Gpt2Config, LlamaConfig, MlpConfig
from trainer.models.shape import shape_of

# Values that a block keeps per token, in widths of the residual stream, of the feed-forward part, and of attention
# scores: about twice what the models here keep.
_WIDTHS, _FEED_FORWARD, _SCORES = 40, 8, 4


def bound(config: Config) -> Sizes | None:
    """None where no such bound is known."""
    model = config.model
    states = 2 if config.optimizer.name == "adamw" else 1
    parameters = shape_of(model).params
    if isinstance(model, MlpConfig):
        kept = WEIGHT * 8 * (model.inputs + sum(model.hidden) + model.classes)
        return Sizes(parameters, parameters, states, len(model.hidden), kept, kept, kept, WEIGHT * model.classes)
    if not isinstance(model, LlamaConfig | Gpt2Config):
        return None
    length = config.data.seq_len or model.seq_len
    ffn = model.ffn if isinstance(model, LlamaConfig) else 4 * model.dim
    block = WEIGHT * length * (_WIDTHS * model.dim + _FEED_FORWARD * ffn + _SCORES * model.heads * length)
    outputs = WEIGHT * length * model.vocab_size
    # The embedding and the head lie outside of the blocks.
    kept = model.layers * block + WEIGHT * _WIDTHS * length * model.dim + 4 * outputs
    return Sizes(parameters, parameters, states, model.layers, kept, block, block, outputs)
