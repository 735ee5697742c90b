"""Models in the shapes that other people's models have: nested, tied, wrapped, looped, with unused parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, LAYERS = 12, 8, 3


class Layer(nn.Module):
    """A layer like those of Hugging Face: it holds modules itself, takes keywords and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleList([nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> tuple[torch.Tensor]:
        up, down = self.mlp
        return (x + scale * down(F.gelu(up(self.norm(x)))),)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            (x,) = layer(x, scale=0.5)
        return self.norm(x)


class HuggingFaceShaped(nn.Module):
    """A backbone and a head, as in transformers' language models."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.model = Backbone()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(tokens))


@dataclass
class Output:
    """What a model may return in place of a tensor."""

    logits: torch.Tensor


class ReturningObject(HuggingFaceShaped):
    """The outputs are in an object of a class that torch does not know."""

    def forward(self, tokens: torch.Tensor) -> Any:
        return Output(super().forward(tokens))


class NanoGptShaped(nn.Module):
    """All parts in one ModuleDict, with the layers in a list inside of it; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(16, WIDTH),
                "h": nn.ModuleList([Layer() for _ in range(LAYERS)]),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](positions)
        for layer in self.transformer["h"]:
            (x,) = layer(x)
        return self.lm_head(self.transformer["ln_f"](x))


class Wrapped(nn.Module):
    """A model inside of another one, as adapters and callbacks wrap it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.base = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.base(tokens)


class Looped(HuggingFaceShaped):
    """The same layer at every depth."""

    def __init__(self) -> None:
        super().__init__()
        self.model.layers = nn.ModuleList([self.model.layers[0]] * LAYERS)


class SharingLayers(HuggingFaceShaped):
    """The first and the last layer share a weight; the one between them does not."""

    def __init__(self) -> None:
        super().__init__()
        self.model.layers[2].mlp[0].weight = self.model.layers[0].mlp[0].weight


class EmbeddingAsHead(nn.Module):
    """The weight of the embedding is used without calling it; its name is that of our own models' embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.blocks:
            (x,) = layer(x)
        return F.linear(x, self.embed.weight)


class Bypassing(HuggingFaceShaped):
    """The modules inside of the layers are called, the layers themselves are not."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = x + layer.mlp[1](layer.mlp[0](layer.norm(x)))
        return self.lm_head(x)


class PartlyUnused(HuggingFaceShaped):
    """A pooling layer that the loss does not depend on, as in many encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.pooler = nn.Linear(WIDTH, WIDTH)


class PartlyFrozen(HuggingFaceShaped):
    """Only the last layer and the head are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.model.requires_grad_(False)
        self.model.layers[-1].requires_grad_(True)


SHAPES = {
    "hugging face": HuggingFaceShaped,
    "hugging face, tied": lambda: HuggingFaceShaped(tied=True),
    "returning an object": ReturningObject,
    "nanogpt": NanoGptShaped,
    "wrapped": lambda: Wrapped(Wrapped(NanoGptShaped())),
    "looped": Looped,
    "sharing layers": SharingLayers,
    "embedding as head": EmbeddingAsHead,
    "bypassing": Bypassing,
    "partly unused": PartlyUnused,
    "partly frozen": PartlyFrozen,
}


def make_shape(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a model with weights that do not depend on the rank."""
    torch.manual_seed(1)
    model: nn.Module = SHAPES[name]()
    return model.to(dtype)
