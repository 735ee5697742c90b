"""One optimizer step: forward, backward, norm, update; everything a checkpoint needs of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config.schema import Config
from trainer.optimizer import Optimizer
from trainer.parallel.engine import Batch, Engine, LossFunction
from trainer.parallel.gradients import compute_global_norm
from trainer.precision import LossScale
from trainer.schedule import learning_rate
from trainer.step_mean import StepMean

_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class StepResult:
    """Device tensors: reading one waits for the step."""

    loss: torch.Tensor  # mean over this rank's samples; Mesh.mean_over_data gives the mean over all
    grad_norm: torch.Tensor  # over all ranks, before clipping
    skipped: torch.Tensor  # 1.0 where the update was left out because of a NaN or an infinity
    rate: float


class Step:
    def __init__(self, engine: Engine, config: Config, loss_fn: LossFunction) -> None:
        self.engine = engine
        self.index = 0  # steps done
        self.before_update: Callable[[], None] = _nothing
        self.optimizer = Optimizer(engine.named_parameters(), config.optimizer)
        self.scale = LossScale(engine.mesh.device) if config.precision == "fp16" else None
        self._config = config
        self._loss_fn = loss_fn
        self._skips = self.scale is not None or config.health.nonfinite != "ignore"

    def run(self, batch: Batch, micro: int) -> StepResult:
        """One step over this rank's share of the batch, without waiting for the device."""
        self.seed_dropout()
        rate = learning_rate(self._config.schedule, self._config.optimizer.lr, self._config.steps, self.index)
        factor = None if self.scale is None else self.scale.scale
        if isinstance(self._loss_fn, StepMean):
            self._loss_fn.begin(batch["targets"], micro)
        loss = self.engine.forward_backward(batch, self._loss_fn, micro, factor)
        norm = compute_global_norm(self.optimizer.gradients(), self.engine.mesh)
        norm = norm if factor is None else norm / factor
        bad = ~torch.isfinite(norm)
        skipped = bad.float() if self._skips else torch.zeros_like(norm)
        self.before_update()
        self.optimizer.step(rate, self._divisor(norm, factor), skipped if self._skips else None)
        self.optimizer.zero_gradients()
        if self.scale is not None:
            self.scale.update(bad)
        self.index += 1
        return StepResult(loss, norm, skipped, rate)

    def seed_dropout(self) -> None:
        """Random numbers of a step depend on seed, step and rank only: a resumed run draws the same, with no state."""
        mesh = self.engine.mesh
        seed = (self._config.run.seed * _SEED_STRIDE + self.index) * _SEED_STRIDE + mesh.rank
        # torch.manual_seed would queue a call for CUDA in every step of a run without it.
        torch.default_generator.manual_seed(seed % 2**63)
        if mesh.device.type == "cuda":
            torch.cuda.manual_seed(seed % 2**63)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor of a checkpoint, by name; sharded ones as DTensors. Loading writes into them."""
        found: dict[str, torch.Tensor] = {f"model.{name}": value for name, value in self.engine.named_parameters()}
        found |= {f"optim.{name}": value for name, value in self.optimizer.tensors().items()}
        found |= {f"buffer.{name}": value for name, value in self.engine.named_buffers()}
        if self.scale is not None:
            found |= {f"scaler.{name}": value for name, value in self.scale.tensors().items()}
        return found

    def saved_tensors(self) -> dict[str, torch.Tensor]:
        """What this rank gives to a checkpoint: statistics such as a batch norm's differ by rank, the first's count."""
        is_first = self.engine.mesh.dp_rank == 0
        return {name: value for name, value in self.tensors().items() if is_first or not name.startswith("buffer.")}

    def state(self) -> dict[str, Any]:
        return {"step": self.index}

    def load_state(self, state: dict[str, Any]) -> None:
        self.index = int(state["step"])

    def _divisor(self, norm: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor | None:
        """Unscaling and clipping in one: the update kernel divides gradients by it, so no pass of its own is made."""
        limit = self._config.optimizer.clip_norm
        if not limit:
            return factor
        too_long = ((norm + 1e-6) / limit).clamp(min=1.0)
        return too_long if factor is None else too_long * factor


def _nothing() -> None:
    pass
