"""The network that a configuration asks for; the other families are not imported."""

# ruff: noqa: PLC0415
from __future__ import annotations

from torch import nn

from trainer.config.schema import Gpt2Config, LlamaConfig, ModelConfig, ResNetConfig


def build(config: ModelConfig) -> nn.Module:
    """Only shapes count here: the weights are drawn by `trainer.models.init.fill`. Works under torch.device("meta")."""
    if isinstance(config, LlamaConfig):
        from trainer.models.llama import Llama

        return Llama(config)
    if isinstance(config, Gpt2Config):
        from trainer.models.gpt2 import Gpt2

        return Gpt2(config)
    if isinstance(config, ResNetConfig):
        from trainer.models.resnet import ResNet

        return ResNet(config)
    from trainer.models.mlp import Mlp

    return Mlp(config)
