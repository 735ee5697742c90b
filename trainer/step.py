"""One optimizer step: forward, backward, gradient norm and update, and its state for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.config.schema import Config
from trainer.engines.outer_step import LOCAL, OuterStep
from trainer.expert_balance import ExpertBalance
from trainer.fp8_history import Fp8History
from trainer.objective import StepMeanLoss
from trainer.optimizers.optimizer import Optimizer
from trainer.parallel.context import take_part
from trainer.parallel.engine import Batch, Engine, LossFunction
from trainer.parallel.gradients import compute_global_norm, to_local
from trainer.parallel.modules import list_embeddings
from trainer.precision import DTYPES, LossScale
from trainer.private_tensors import name_private
from trainer.sample_losses import SampleLosses
from trainer.schedule import learning_rate

_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class StepResult:
    """The results of a step as tensors on the device: reading one waits for the step."""

    loss: torch.Tensor
    """Mean over this rank's samples; Mesh.mean_over_data returns the mean over all samples.

    With StepMeanLoss it is weighted by this rank's share of the targets, so that the same mean is that of all targets.
    """
    grad_norm: torch.Tensor
    """Norm of the gradients of all ranks, before clipping."""
    skipped: torch.Tensor
    """1.0 if the update was skipped because of a NaN or an infinity."""
    rate: float
    """The learning rate."""
    expert_load: torch.Tensor | None = None
    """Load of the most used expert relative to the mean, in the layer where it is largest; None without experts."""
    source_sums: torch.Tensor | None = None
    """Loss and targets of each data set of a mixture on this rank, for `average_by_source`; None without a mixture."""
    compression: dict[str, torch.Tensor | float] = field(default_factory=dict)
    """Bytes that this rank has sent and what it has left over; empty if whole gradients are averaged in each step."""


class StepAbandoned(Exception):
    """Raised between two micro-batches to give up a step; the message says why."""


class Step:
    """The optimizer steps of a run, and their count."""

    def __init__(
        self, engine: Engine, config: Config, loss_fn: LossFunction, samples: SampleLosses | None = None
    ) -> None:
        """Prepare the optimizer; `samples` is where the loss function records the losses of samples, if it does."""
        self.engine = engine
        self.index = 0
        """Steps done."""
        self.before_update: Callable[[], None] = _do_nothing
        self.after_gradients: Callable[[Batch, torch.Tensor], None] | None = None
        """Called with batch and loss when a step has its gradients; it may give up the step by an exception."""
        embeddings = list_embeddings(engine.modules)
        self.optimizer = Optimizer(engine.named_parameters(), config.optimizer, engine.mesh, embeddings)
        engine.choices.extend(self.optimizer.describe_groups())
        self.balance = ExpertBalance(engine.modules, engine.mesh)
        self.fp8 = Fp8History(engine.modules, engine.mesh) if config.fp8.scaling == "delayed" else None
        self.scale = LossScale(engine.mesh.device) if config.precision == "fp16" else None
        self.outer = _make_outer_step(engine, config) if config.communication.inner_steps else None
        self._config = config
        self._loss_fn = loss_fn
        self._samples = samples
        self._can_skip = self.scale is not None or config.health.nonfinite != "ignore"

    def run(self, batch: Batch, micro: int) -> StepResult:
        """Run a step over this rank's share of the batch, without waiting for the device."""
        rate = learning_rate(self._config.schedule, self._config.optimizer.lr, self._config.steps, self.index)
        factor = None if self.scale is None else self.scale.scale
        seed = self._config.run.seed * _SEED_STRIDE + self.index
        compression = self.engine.compression
        if compression is not None:
            compression.begin(self.index, seed)
        loss = self._differentiate(batch, micro, self.engine.mesh.rank)
        if self.after_gradients is not None:
            self.after_gradients(batch, loss)
        norm = compute_global_norm(self.optimizer.gradients(), self.engine.mesh)
        norm = norm if factor is None else norm / factor
        is_bad = ~torch.isfinite(norm)
        skipped = is_bad.float() if self._can_skip else torch.zeros_like(norm)
        self.before_update()
        if compression is not None:
            compression.settle(skipped)
        if self.fp8 is not None:
            self.fp8.record(self.index, is_bad)
        self.optimizer.step(rate, self._compute_divisor(norm, factor), skipped if self._can_skip else None, seed)
        self.optimizer.zero_gradients()
        if self.scale is not None:
            self.scale.update(is_bad)
        self.index += 1
        if self.outer is not None:
            self.outer.after_step(self.index, self._config.steps)
        source_sums = None
        if self._samples is not None and "sources" in batch:
            source_sums = self._samples.sum_by_source(batch["sources"])
        sender = compression or self.outer
        figures = {} if sender is None else sender.measure()
        return StepResult(loss, norm, skipped, rate, self.balance.end(), source_sums, figures)

    def replay(self, batch: Batch, micro: int, rank: int) -> torch.Tensor:
        """Compute the loss and the gradients of the next step as `rank` does, drop the gradients, return the loss.

        Every rank must call it, and each with the samples of another one. Only buffers of the model change.
        """
        try:
            return self._differentiate(batch, micro, rank)
        finally:
            self.optimizer.zero_gradients()

    def seed_dropout(self, rank: int | None = None) -> None:
        """Seed the generators by run seed, step and rank, so that a resumed run draws the same numbers."""
        mesh = self.engine.mesh
        seed = (self._config.run.seed * _SEED_STRIDE + self.index) * _SEED_STRIDE + (
            mesh.rank if rank is None else rank
        )
        # torch.manual_seed would queue a call for CUDA in every step, even in a run without CUDA.
        torch.default_generator.manual_seed(seed % 2**63)
        if mesh.device.type == "cuda":
            torch.cuda.manual_seed(seed % 2**63)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor of a checkpoint by name, sharded ones as DTensors; loading writes into them."""
        tensors: dict[str, torch.Tensor] = {f"model.{name}": value for name, value in self.engine.named_parameters()}
        tensors |= self._own_tensors()
        if self.outer is not None:
            tensors |= {f"model.{name}": value for name, value in self.outer.shared_weights().items()}
            tensors |= {f"outer.{name}": value for name, value in self.outer.named_momentum()}
        tensors |= {f"buffer.{name}": value for name, value in self.engine.named_buffers()}
        if self.fp8 is not None:
            tensors |= {f"fp8.{name}": value for name, value in self.fp8.tensors().items()}
        return tensors | self.private_tensors()

    def private_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a checkpoint that only this rank has; their names contain its number."""
        rank = self.engine.mesh.rank
        tensors = dict(self.engine.private_tensors())
        if self.outer is not None:
            parts = {f"{LOCAL}{name}": to_local(value.detach()) for name, value in self._own_tensors().items()}
            tensors |= {name: part for name, part in parts.items() if part.numel()}
        return {name_private(rank, name): value for name, value in tensors.items()}

    def saved_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that this rank saves.

        Buffers may differ by rank, so only the first rank saves them. In inner steps, moments and scales of the loss
        differ by copy, and those of one weight belong together, so only the first copy saves them under shared names.
        """
        mesh = self.engine.mesh
        is_first = mesh.dp_rank == 0 and mesh.coordinate("context") == 0
        omitted: tuple[str, ...] = () if is_first else ("buffer.",)
        if self.outer is not None and mesh.coordinate("replicate"):
            omitted += ("optim.", "scaler.")
        return {name: value for name, value in self.tensors().items() if not name.startswith(omitted)}

    def state(self) -> dict[str, Any]:
        """Return the state of a checkpoint that is not a tensor."""
        return {"step": self.index}

    def after_load(self, loaded: Container[str]) -> None:
        """Derive what follows from tensors that were loaded, given their names."""
        self.optimizer.round_master_weights()
        if self.outer is not None and not any(name in loaded for name in self.private_tensors()):
            self.outer.begin_round()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self.index = int(state["step"])

    def _own_tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that an update changes, by name; copies differ in them between outer steps."""
        trained = ((name, value) for name, value in self.engine.named_parameters() if value.requires_grad)
        tensors: dict[str, torch.Tensor] = {f"model.{name}": value for name, value in trained}
        tensors |= {f"optim.{name}": value for name, value in self.optimizer.tensors().items()}
        if self.scale is not None:
            tensors |= {f"scaler.{name}": value for name, value in self.scale.tensors().items()}
        return tensors

    def _differentiate(self, batch: Batch, micro: int, rank: int) -> torch.Tensor:
        """Compute the gradients of a batch with the random numbers of `rank`, and return the loss."""
        self.seed_dropout(rank)
        batch = take_part({name: value for name, value in batch.items() if name != "sources"}, self.engine.mesh)
        factor = None if self.scale is None else self.scale.scale
        if isinstance(self._loss_fn, StepMeanLoss):
            self._loss_fn.begin(batch["targets"], micro)
        if self._samples is not None:
            self._samples.begin(len(batch["targets"]))
        if self.fp8 is not None:
            self.fp8.begin()
        self.balance.begin(len(batch["targets"]) // micro, factor)
        return self.engine.forward_backward(batch, self._loss_fn, micro, factor)

    def _compute_divisor(self, norm: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor | None:
        """Return the divisor by which the update kernel unscales and clips gradients without another pass."""
        limit = self._config.optimizer.clip_norm
        if not limit:
            return factor
        excess = ((norm + 1e-6) / limit).clamp(min=1.0)
        return excess if factor is None else excess * factor


def _make_outer_step(engine: Engine, config: Config) -> OuterStep:
    return OuterStep(
        engine.named_parameters(),
        config.communication,
        engine.mesh.group("replicate"),
        bucket_mb=config.parallel.bucket_mb,
        sent_dtype=DTYPES[config.parallel.reduce],
    )


class RunningStatistics:
    """The buffers of a model, such as a batch norm's statistics, which are restored after a skipped or abandoned step.

    They are copied before each step. After it, the device selects the old or the new values, with a few kernels for any
    number of buffers.
    """

    def __init__(self, buffers: Iterable[tuple[str, torch.Tensor]]) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for _, buffer in buffers:
            if buffer.numel():
                groups.setdefault((buffer.device, buffer.dtype), []).append(to_local(buffer))
        self._groups = list(groups.values())
        self._copies: list[torch.Tensor] = []

    @torch.no_grad()
    def record(self) -> None:
        """Copy the statistics before a step."""
        self._copies = [_flatten(buffers) for buffers in self._groups]

    @torch.no_grad()
    def restore(self, skipped: torch.Tensor) -> None:
        """Put the copies back if `skipped` is 1."""
        for buffers, before in zip(self._groups, self._copies, strict=True):
            selected = torch.where(skipped.to(before.device) > 0, before, _flatten(buffers))
            parts = selected.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(to) for part, to in zip(parts, buffers, strict=True)])


def _flatten(buffers: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


def _do_nothing() -> None:
    pass
