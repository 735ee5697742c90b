"""Choose how a decoder keeps documents apart: by flex_attention where it can be compiled, else by a mask."""

from __future__ import annotations

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.compile_check import find_obstacle
from trainer.config.layout import Layout
from trainer.config.models import DecoderConfig, Gpt2Config, LlamaLikeConfig
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units

_FLEX_MIN_HEAD_DIM = 16
_TRITON_MIN_CAPABILITY = (8, 0)


def choose_document_kernel(model: nn.Module, _units: Units, _recipe: Recipe, mesh: Mesh) -> None:
    """Let the model use flex_attention for documents if nothing prevents it."""
    decoder: Any = model
    config = getattr(model, "config", None)
    if isinstance(config, DecoderConfig) and not explain_mask(config, mesh.device, mesh.layout):
        decoder.document_kernel = "flex"


def explain_mask(config: DecoderConfig, device: torch.device, layout: Layout) -> str:
    """Return why documents are separated by a mask and not by flex_attention; empty if they are not."""
    if device.type != "cuda":
        return f"flex_attention does not train on a {device.type.upper()}"
    if layout.context > 1:
        return "flex_attention is not used for parts of sequences (parallel.context)"
    return _explain_model(config) or _explain_machine(device)


def describe_document_kernel(config: DecoderConfig, device: torch.device, layout: Layout) -> str:
    """Return a line for the log about how documents are separated."""
    reason = explain_mask(config, device, layout)
    return f"documents: separated by a mask; {reason}" if reason else "documents: separated by flex_attention"


def _explain_model(config: DecoderConfig) -> str:
    head_dim = config.head_width if isinstance(config, LlamaLikeConfig) else config.dim // config.heads
    if head_dim < _FLEX_MIN_HEAD_DIM:
        return f"flex_attention needs heads of {_FLEX_MIN_HEAD_DIM} values or more, and the model's have {head_dim}"
    if isinstance(config, Gpt2Config) and config.dropout:
        return "flex_attention has no dropout (model.dropout)"
    return ""


def _explain_machine(device: torch.device) -> str:
    capability = torch.cuda.get_device_capability(device)
    if capability < _TRITON_MIN_CAPABILITY:
        return f"flex_attention needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    if find_spec("triton") is None:
        return "flex_attention needs the package triton"
    return find_obstacle(Path(sysconfig.get_path("include")))
