"""Check the settings of fp8 products."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.errors import ConfigProblem
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config

FP8_MULTIPLE = 16
"""Fp8 products need sizes that are multiples of this number."""


def check_fp8(config: Config) -> Iterator[ConfigProblem]:
    """Check that fp8 products have the precision and the layers they need."""
    scaling = config.fp8.scaling
    if scaling == "none":
        if config.fp8.head:
            message = "true, but fp8.scaling is none"
            yield ConfigProblem("fp8.head", message, "set it to false, or fp8.scaling to tensor, row or delayed")
        return
    if config.precision != "bf16":
        message = f"{scaling}, but precision is {config.precision}, and outputs of fp8 products are bf16"
        yield ConfigProblem("fp8.scaling", message, "set precision to bf16, or this to none")
    if config.parallel.tensor > 1:
        message = f"{scaling}, but parallel.tensor={config.parallel.tensor} splits the linear layers"
        yield ConfigProblem("fp8.scaling", message, "set parallel.tensor to 1, or this to none")
    if config.fp8.head:
        yield from _check_head(config)
    if config.lora.rank:
        message = f"{scaling}, but lora.rank={config.lora.rank} changes the linear layers"
        yield ConfigProblem("fp8.scaling", message, "set it to none, or lora.rank to 0")
    if scaling == "delayed" and config.parallel.pipeline > 1:
        message = f"delayed, but parallel.pipeline={config.parallel.pipeline} has several micro-batches in flight"
        yield ConfigProblem("fp8.scaling", message, "use tensor or row, or set parallel.pipeline to 1")


def _check_head(config: Config) -> Iterator[ConfigProblem]:
    model = config.model
    if not isinstance(model, DecoderConfig):
        message = "true, but only the head of a language model computes in fp8"
        yield ConfigProblem("fp8.head", message, "set it to false")
        return
    for name, size in (("vocab_size", model.vocab_size), ("dim", model.dim)):
        if size % FP8_MULTIPLE:
            message = f"true, but model.{name} is {size}, and fp8 products need multiples of {FP8_MULTIPLE}"
            fix = f"set it to false, or model.{name} to {size + -size % FP8_MULTIPLE}"
            yield ConfigProblem("fp8.head", message, fix)
