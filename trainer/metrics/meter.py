"""The measurements of a training loop behind three calls: phase, step and done."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from trainer.config.models import DecoderConfig, ResNetConfig
from trainer.config.schema import Config
from trainer.metrics.clock import NOT_MEASURED, Clock, Phase, StepTimes
from trainer.metrics.communication import Profile
from trainer.metrics.device_values import DeviceValues, Reading
from trainer.metrics.profile import Profiler
from trainer.metrics.recorder import Recorder
from trainer.metrics.utilisation import FORMULA, MatmulRates, Nvml, measure_rates, read_memory_gb


class Meter:
    """The measurements of a loop, recorded as a line of metrics every `metrics.every` steps.

    Usage in a loop::

        with meter.phase("data"):
            batch = next(batches)
        with meter.step(step):
            result = train(batch)
        for reading in meter.done(step, {"loss": result.loss}, {"lr": rate}):
            judge(reading)

    `done` returns the values of the previous step, so that no step waits for the device.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the facts about a run that its figures depend on
        self,
        recorder: Recorder,
        config: Config,
        device: torch.device,
        world_size: int,
        flops_per_sample: float,
        hosts: Sequence[str] = (),
    ) -> None:
        self.clock = Clock(device)
        self._recorder = recorder
        self._config = config
        self._device = device
        self._world_size = world_size
        self._flops_per_sample = flops_per_sample
        self._values = DeviceValues(device)
        self._profiler = Profiler(config.metrics.profile_every, device, self._record_profile, hosts)
        self._nvml = Nvml(device, config.metrics.nvml)
        self._rates: MatmulRates | None = None
        self._has_measured_rates = False
        self._extra: dict[int, dict[str, float]] = {}
        self._window: list[StepTimes] = []
        self.step_s = 0.0  # duration of the last step whose times have been read
        self.own_s = 0.0  # the same, without waiting for other ranks
        self._unit, self._per_sample = throughput_unit(config)

    def phase(self, name: Phase) -> Any:
        return self.clock.phase(name)

    @contextmanager
    def step(self, step: int, *, is_traced: bool = False) -> Iterator[None]:
        """Measure a step, and profile it if that is due; torch allows only one profiler at a time."""
        with nullcontext() if is_traced else self._profiler.around(step), self.clock.phase("compute"):
            yield

    def cancel_profile(self) -> None:
        """Stop a profiler that was started for the next step, because that step is traced."""
        self._profiler.cancel()

    def done(self, step: int, values: Mapping[str, torch.Tensor], extra: Mapping[str, float]) -> list[Reading]:
        """End the step; `extra` are values that are already on the host, such as the learning rate."""
        self.clock.end(step)
        self._values.put(step, values)
        self._extra[step] = dict(extra)
        return self._report(self.clock.take(), self._values.take())

    def is_recorded(self, step: int) -> bool:
        """Return whether a step becomes a line of metrics."""
        return step % self._config.metrics.every == 0 or step == self._config.steps

    def flush(self) -> list[Reading]:
        """Return all readings, waiting for the newest; call it before the end, a rollback, or an urgent decision."""
        return self._report(self.clock.drain(), self._values.drain())

    def _report(self, steps: list[StepTimes], readings: list[Reading]) -> list[Reading]:
        for times, reading in zip(steps, readings, strict=True):
            self._window.append(times)
            self.step_s, self.own_s = times.total, times.own
            extra = self._extra.pop(reading.step)
            if self.is_recorded(reading.step):
                self._recorder.record(reading.step, {**reading.values, **extra, **self._summarise_window()})
                self._window = []
        return readings

    def _summarise_window(self) -> dict[str, Any]:
        step_s = sum(times.total for times in self._window) / len(self._window)
        per_second = self._config.batch.size / step_s
        return {
            f"{self._unit}_per_s": per_second * self._per_sample,
            "mfu": self._compute_mfu(per_second),
            "step_s": step_s,
            **_average_parts(self._window),
            "communication_from": self._window[-1].source,
            "memory_gb": read_memory_gb(self._device),
            **self._nvml.read(),
        }

    def _compute_mfu(self, samples_per_second: float) -> float | None:
        if not self._has_measured_rates:
            self._has_measured_rates = True
            metrics = self._config.metrics
            self._rates = measure_rates(self._device, self._config.precision, metrics.peak_tflops)
            self.clock.restart()
            if self._rates:
                self._recorder.event("peak", formula=FORMULA, **dataclasses.asdict(self._rates))
        if self._rates is None or not self._flops_per_sample:
            return None
        return self._rates.mfu(self._flops_per_sample * samples_per_second, self._world_size)

    def _record_profile(self, profile: Profile) -> None:
        self.clock.set_exposed_share(self._profiler.exposed_share, profile.step)
        self._recorder.profile(profile)


def throughput_unit(config: Config) -> tuple[str, int]:
    """Return the unit of throughput and the number of units per sample."""
    if isinstance(config.model, DecoderConfig):
        return "tokens", config.data.seq_len or config.model.seq_len
    return ("images" if isinstance(config.model, ResNetConfig) else "samples"), 1


def _average_parts(window: list[StepTimes]) -> dict[str, float | None]:
    parts: dict[str, float | None] = {
        f"{name}_s": sum(getattr(times, name) for times in window) / len(window)
        for name in ("data", "compute", "communication", "checkpoint", "other", "own")
    }
    if window[-1].source == NOT_MEASURED:
        parts["communication_s"] = None
    return parts
