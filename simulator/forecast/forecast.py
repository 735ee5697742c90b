"""What is to be expected of one run: its step with an interval, throughput, utilisation, memory, and all of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.forecast.nearest_fit import nearest_fit
from simulator.forecast.settle import Settled, settle
from simulator.forecast.whole_run import WholeRun, whole_run
from simulator.machines.requested import On
from simulator.memory.peak import GIB, fits_in_memory
from simulator.model import Model
from simulator.models import build_model
from simulator.step.prediction import Prediction, predict
from trainer.config.check import check_world
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Config
from trainer.models.shape import Shape, shape_of


@dataclass(frozen=True)
class Forecast:
    settled: Settled
    on: On
    prediction: Prediction
    run: WholeRun

    @property
    def config(self) -> Config:
        return self.settled.config

    @property
    def unit(self) -> str:
        return self._shape.unit

    @property
    def units_per_s(self) -> tuple[float, float, float]:
        """Expected, least and most of the interval: tokens, images or samples."""
        seq_len = self.config.data.seq_len or self._shape.seq_len
        each = self.config.batch.size * max(1, seq_len)
        step = self.prediction
        return each / step.step_s, each / step.high_s, each / step.low_s

    @property
    def peak_tflops(self) -> float:
        """What the utilisation is relative to: the data sheet, or the best product that was measured."""
        peaks, dtype = self.on.sheet.gpu.peak_tflops, self.config.precision
        return peaks.get(dtype) or peaks["fp16"]

    @property
    def mfu(self) -> float:
        flops = self._shape.flops_per_sample(self.config.data.seq_len) * self.config.batch.size
        return flops / self.prediction.step_s / (self.on.ranks * self.peak_tflops * 1e12)

    @property
    def fits(self) -> bool:
        return fits_in_memory(self.prediction.memory, self.on.is_gpu)

    @cached_property
    def memory_gib(self) -> dict[str, float]:
        """By what holds it, the largest first; last what is needed beside tensors."""
        needed = self.prediction.memory
        held = {name: size / GIB for name, size in sorted(needed.parts.items(), key=lambda part: -part[1]) if size}
        beside = self.taken_gib - sum(held.values())
        return {**held, "beside": beside} if beside > 0 else held

    @property
    def taken_gib(self) -> float:
        needed = self.prediction.memory
        return (needed.on_device if self.on.is_gpu else needed.total) / GIB

    @property
    def room_gib(self) -> float:
        return self.prediction.memory.capacity / GIB

    @property
    def problem(self) -> ConfigProblem | None:
        """Why it cannot be run, and the nearest settings with which it could."""
        if self.fits:
            return None
        largest = next(iter(self.memory_gib))
        message = (
            f"{self.taken_gib:.1f} GiB on {'a GPU' if self.on.is_gpu else 'a rank'}; allowed: {self.room_gib:.0f} GiB;"
            f" largest: {largest} {self.memory_gib[largest]:.1f} GiB"
        )
        near = nearest_fit(self.settled, self.on)
        return ConfigProblem(
            "memory", message, f"fits with {near}" if near else "nothing near it fits: more memory is needed"
        )

    @property
    def _shape(self) -> Shape:
        return shape_of(self.config.model)


def forecast(config: Config, on: On) -> Forecast:
    """ConfigError where the trainer would refuse to start on these ranks."""
    if problems := check_world(config, on.ranks, on.per_node):
        raise ConfigError(problems)
    settled = settle(config, on)
    model: Model = build_model(config.model, config.data.seq_len)
    prediction = predict(model, settled.layout, on.system, on.rates)
    return Forecast(settled, on, prediction, whole_run(settled.config, on, prediction))
