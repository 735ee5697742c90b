"""The interface of engines, the ways of spreading a model over ranks: their settings (Recipe) and methods (Engine)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from trainer.config.communication import CommunicationConfig
from trainer.config.layout import Layout
from trainer.config.schema import (
    CompileConfig,
    Fp8Config,
    OptimizerConfig,
    ParallelConfig,
    Precision,
)
from trainer.models.head import Objective, takes_objective
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units
from trainer.state_formats import StateFormats, formats_of

if TYPE_CHECKING:
    from trainer.compression.compression import Compression

Batch = dict[str, torch.Tensor]
"""The tensors of a batch: `inputs`, `targets` and, if documents must not see each other, `documents`.

A batch of a mixture also has `sources`, the number of each sample's data set, which engines do not see.

`documents` has the shape of `inputs` and a number for each token. Neighbours with the same number belong to one
document; any other number, larger or smaller, begins another one. It should stay in the host's memory: see
`place_documents`.
"""
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of outputs and targets.

If it also has a method `from_hidden(hidden, head, targets)`, models that take an objective call that one in their head.
"""
BetweenMicroBatches = Callable[[int, int], None]
"""A function of the index of the next micro-batch and their number; it abandons the step by raising an exception."""


@dataclass(frozen=True)
class Recipe:
    """The settings that decide how a model is spread over ranks, run and compiled."""

    parallel: ParallelConfig
    precision: Precision = "fp32"
    compiled: CompileConfig = field(default_factory=CompileConfig)
    fp8: Fp8Config = field(default_factory=Fp8Config)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Only the formats of weights and gradients matter here."""

    @property
    def formats(self) -> StateFormats:
        """The formats of weights, gradients and products."""
        return formats_of(self.precision, self.parallel, self.optimizer)

    def compresses(self, mesh: Mesh) -> bool:
        """Return whether gradients are compressed; there must be several copies of the model."""
        return self.communication.compression != "none" and mesh.weights.replicate > 1

    def uses_fully_shard(self, layout: Layout) -> bool:
        """Return whether fully_shard, or muster's engine in its place, wraps the units.

        Under fsdp and hsdp, it shards their weights. With torch's tensor parallelism, it is used under every strategy,
        because DDP does not support DTensors: without a shard axis, it only reduces gradients and applies the
        precision.
        """
        is_split_by_torch = layout.tensor > 1 and self.parallel.engine == "torch"
        return self.parallel.strategy in ("fsdp", "hsdp") or is_split_by_torch

    def compiles_blocks(self, layout: Layout) -> bool:
        """Return whether blocks are compiled one by one, as they must be if the engine runs code between them."""
        is_cut = self.uses_fully_shard(layout) or layout.pipeline > 1
        return self.compiled.mode == "blocks" or (self.compiled.mode == "whole" and is_cut)

    def uses_units(self, layout: Layout) -> bool:
        """Return whether the model's units matter: whether they are sharded, recomputed, compiled or fp8."""
        is_changed = self.parallel.recompute != "none" or self.fp8.scaling != "none"
        return self.uses_fully_shard(layout) or self.compiles_blocks(layout) or is_changed


class Engine(Protocol):
    """A model spread over ranks, as the training step uses it."""

    mesh: Mesh
    modules: list[nn.Module]
    units: Units
    """The layers of the whole model that are sharded, recomputed and compiled one at a time."""
    takes_objective: bool
    """Whether the whole model computes a loss on hidden states itself; in a pipeline, only its last stage does."""
    choices: list[str]
    """Settings that were chosen automatically, with the reason, for the log."""
    before_micro_batch: BetweenMicroBatches
    """Called before every micro-batch but the first, unless a schedule runs several of them at a time (a pipeline)."""
    compression: Compression | None
    """How gradients are compressed, or None if they are not."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under the model's own names, sharded ones as DTensors."""

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers that belong in a checkpoint, under the model's own names."""

    def private_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield tensors that belong to this rank alone, such as what compressed gradients have left over.

        They are part of a checkpoint and restored if the layout is still the same; otherwise they keep their values.
        """

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        """Return the tensors for which autograd computes this rank's own gradients: whole parameters, by name."""

    def forward_backward(
        self, batch: Batch, loss_fn: LossFunction, micro: int, scale: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the gradients of the mean loss, times `scale`, and return this rank's mean loss.

        The batch is run in pieces of `micro` samples. The gradients are in the parameters' `grad`. Nothing waits for
        the device.
        """

    def measure(self, batch: Batch, measure: LossFunction, micro: int) -> torch.Tensor | None:
        """Return the sum of `measure(outputs, targets)` over pieces of `micro` samples, or None without any outputs.

        Call it within `evaluation_mode`. In a pipeline, only the ranks of the last stage have outputs.
        """


def do_nothing(_index: int, _count: int) -> None:
    """Continue with the next micro-batch."""


def find_objective(model: nn.Module, loss_fn: LossFunction) -> Objective | None:
    """Return the objective that the model calls in its head, or None if the loss is computed from its outputs."""
    return getattr(loss_fn, "from_hidden", None) if takes_objective(model) else None


def run_objective(model: Any, batch: Batch, loss_fn: LossFunction, objective: Objective | None) -> torch.Tensor:
    """Return the loss of a micro-batch, or any other figure; `objective` is what `find_objective` returns."""
    if objective is None:
        return loss_fn(run_model(model, batch), batch["targets"])
    loss: torch.Tensor = model(
        batch["inputs"], **select_documents(batch), objective=objective, targets=batch["targets"]
    )
    return loss


def run_model(model: nn.Module, batch: Batch) -> Any:
    """Return the outputs of the model for a micro-batch."""
    return model(batch["inputs"], **select_documents(batch))


def select_documents(batch: Batch) -> Batch:
    """Return the keyword arguments of a model that tell it about the documents of a micro-batch, if there are any."""
    return {"documents": batch["documents"]} if "documents" in batch else {}


def split_batch(batch: Batch, micro: int) -> list[Batch]:
    """Return parts of the batch with `micro` samples each."""
    size = len(batch["inputs"])
    if size % micro:
        raise ValueError(f"{size} samples cannot be split into micro-batches of {micro}")
    pieces = ({key: value[at : at + micro] for key, value in batch.items()} for at in range(0, size, micro))
    return [place_documents(piece) for piece in pieces]


def place_documents(batch: Batch) -> Batch:
    """Copy documents from the host to the device, or leave them out if each sample is one document.

    Plain causal attention is then enough, and faster. Documents that are on the device already are not checked, because
    the host would have to wait for it.
    """
    documents = batch.get("documents")
    if documents is None or not documents.is_cpu:
        return batch
    if not (documents[:, 1:] != documents[:, :-1]).any():
        return {name: tensor for name, tensor in batch.items() if name != "documents"}
    return {**batch, "documents": documents.to(batch["inputs"].device, non_blocking=True)}
