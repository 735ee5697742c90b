"""The model families: the network class of each configuration class."""

# ruff: noqa: PLC0415 - a run imports only the family that it trains.
from __future__ import annotations

from typing import assert_never

from torch import nn

from trainer.config.models import Gpt2Config, LlamaLikeConfig, MlpConfig, ModelConfig, ResNetConfig
from trainer.config.schema import Config


def build_network(config: Config) -> nn.Module:
    """Create the network of a run: its model, with LoRA's layers if it has them."""
    model = build_model(config.model)
    if config.lora.rank:
        from trainer.models.lora import add_lora

        add_lora(model, config.lora)
    return model


def build_model(config: ModelConfig) -> nn.Module:
    """Create the network that the configuration describes.

    Its weights are not initialised yet: `trainer.models.init.fill` does that. Works under torch.device("meta").
    """
    if isinstance(config, LlamaLikeConfig):
        from trainer.models.llama import Llama

        return Llama(config)
    if isinstance(config, Gpt2Config):
        from trainer.models.gpt2 import Gpt2

        return Gpt2(config)
    if isinstance(config, ResNetConfig):
        from trainer.models.resnet import ResNet

        return ResNet(config)
    if isinstance(config, MlpConfig):
        from trainer.models.mlp import Mlp

        return Mlp(config)
    assert_never(config)
