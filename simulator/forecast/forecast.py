"""The forecast of one run: its step with an interval, throughput, utilization, memory, and the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.forecast.nearest_fit import nearest_fit
from simulator.forecast.resolve import ResolvedRun, resolve_settings
from simulator.forecast.whole_run import WholeRun, predict_whole_run
from simulator.machines.job_machines import JobMachines
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
    """A run with its resolved settings, its machines and its predictions."""

    resolved: ResolvedRun
    machines: JobMachines
    prediction: Prediction
    run: WholeRun

    @property
    def config(self) -> Config:
        return self.resolved.config

    @property
    def unit(self) -> str:
        return self._shape.unit

    @property
    def units_per_s(self) -> tuple[float, float, float]:
        """Tokens, images or samples per second: expected, and the low and high end of the interval."""
        seq_len = self.config.data.seq_len or self._shape.seq_len
        units = self.config.batch.size * max(1, seq_len)
        step = self.prediction
        return units / step.step_s, units / step.high_s, units / step.low_s

    @property
    def peak_tflops(self) -> float:
        """The peak that utilization is relative to: the data sheet's, or the best measured matrix product."""
        peaks, dtype = self.machines.sheet.gpu.peak_tflops, self.config.precision
        return peaks.get(dtype) or peaks["fp16"]

    @property
    def mfu(self) -> float:
        flops = self._shape.flops_per_sample(self.config.data.seq_len) * self.config.batch.size
        return flops / self.prediction.step_s / (self.machines.ranks * self.peak_tflops * 1e12)

    @property
    def fits(self) -> bool:
        return fits_in_memory(self.prediction.memory, self.machines.is_gpu)

    @cached_property
    def memory_gib(self) -> dict[str, float]:
        """GiB by use, the largest first; last, what is needed besides tensors."""
        needed = self.prediction.memory
        held = {name: size / GIB for name, size in sorted(needed.parts.items(), key=lambda part: -part[1]) if size}
        besides = self.taken_gib - sum(held.values())
        return {**held, "beside": besides} if besides > 0 else held

    @property
    def taken_gib(self) -> float:
        needed = self.prediction.memory
        return (needed.on_device if self.machines.is_gpu else needed.total) / GIB

    @property
    def room_gib(self) -> float:
        return self.prediction.memory.capacity / GIB

    @property
    def problem(self) -> ConfigProblem | None:
        """Why the run does not fit in memory, and the nearest settings that do; None if it fits."""
        if self.fits:
            return None
        largest = next(iter(self.memory_gib))
        where = "a GPU" if self.machines.is_gpu else "a rank"
        message = (
            f"{self.taken_gib:.1f} GiB on {where}; allowed: {self.room_gib:.0f} GiB;"
            f" largest: {largest} {self.memory_gib[largest]:.1f} GiB"
        )
        near = nearest_fit(self.resolved, self.machines)
        return ConfigProblem(
            "memory", message, f"fits with {near}" if near else "no similar settings fit: more memory is needed"
        )

    @property
    def _shape(self) -> Shape:
        return shape_of(self.config.model)


def forecast(config: Config, machines: JobMachines) -> Forecast:
    """Predict a run; raise ConfigError if the trainer would not start on these ranks, or if it is not modelled."""
    if config.lora.rank:
        message = f"{config.lora.rank} is not predicted; allowed: 0"
        fix = "set it to 0 to predict training of all weights, which takes more memory and time"
        raise ConfigError([ConfigProblem("lora.rank", message, fix)])
    if problems := check_world(config, machines.ranks, machines.per_node):
        raise ConfigError(problems)
    resolved = resolve_settings(config, machines)
    model: Model = build_model(config.model, config.data.seq_len)
    prediction = predict(model, resolved.layout, machines.system, machines.rates)
    return Forecast(resolved, machines, prediction, predict_whole_run(resolved.config, machines, prediction))
