"""All measuring of a loop behind three calls: phase, step, done. One line of metrics every N steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from trainer.config.schema import Config, Gpt2Config, LlamaConfig, ResNetConfig
from trainer.metrics.clock import NOT_MEASURED, Clock, Phase, Split
from trainer.metrics.communication import Profile
from trainer.metrics.device_values import DeviceValues, Reading
from trainer.metrics.profile import Profiler
from trainer.metrics.recorder import Recorder
from trainer.metrics.utilisation import FORMULA, Nvml, Rates, memory_gb, rates


class Meter:
    """What a loop does with it:

        with meter.phase("data"):
            batch = next(batches)
        with meter.step(step):
            result = train(batch)
        for reading in meter.done(step, {"loss": result.loss}, {"lr": rate}):
            judge(reading)

    `done` gives the values of the step before, so nothing in a step waits for the device.
    """

    def __init__(
        self, recorder: Recorder, config: Config, device: torch.device, world_size: int, flops_per_sample: float
    ) -> None:
        self.clock = Clock(device)
        self._recorder = recorder
        self._config = config
        self._device = device
        self._world_size = world_size
        self._flops_per_sample = flops_per_sample
        self._values = DeviceValues(device)
        self._profiler = Profiler(config.metrics.profile_every, device, self._profiled)
        self._nvml = Nvml(device, config.metrics.nvml)
        self._rates: Rates | None = None
        self._measured = False
        self._extra: dict[int, dict[str, float]] = {}
        self._window: list[Split] = []
        self.step_s = 0.0  # of the last step that is known
        self.own_s = 0.0  # the same without waiting for others
        self._unit, self._per_sample = throughput_unit(config)

    def phase(self, name: Phase) -> Any:
        return self.clock.phase(name)

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        with self._profiler.around(step), self.clock.phase("compute"):
            yield

    def done(self, step: int, values: Mapping[str, torch.Tensor], extra: Mapping[str, float]) -> list[Reading]:
        """Ends the step. `extra` are numbers the host knows already, such as the learning rate."""
        self.clock.end(step)
        self._values.put(step, values)
        self._extra[step] = dict(extra)
        return self._report(self.clock.take(), self._values.take())

    def flush(self) -> list[Reading]:
        """The newest step too, waiting for it: before the end, a rollback, or a decision that cannot be late."""
        return self._report(self.clock.drain(), self._values.drain())

    def _report(self, splits: list[Split], readings: list[Reading]) -> list[Reading]:
        for split, reading in zip(splits, readings, strict=True):
            self._window.append(split)
            self.step_s, self.own_s = split.total, split.own
            extra = self._extra.pop(reading.step)
            if reading.step % self._config.metrics.every == 0 or reading.step == self._config.steps:
                self._recorder.record(reading.step, {**reading.values, **extra, **self._measure()})
                self._window = []
        return readings

    def _measure(self) -> dict[str, Any]:
        step_s = sum(split.total for split in self._window) / len(self._window)
        per_second = self._config.batch.size / step_s
        return {
            f"{self._unit}_per_s": per_second * self._per_sample,
            "mfu": self._mfu(per_second),
            "step_s": step_s,
            **_parts(self._window),
            "communication_from": self._window[-1].source,
            "memory_gb": memory_gb(self._device),
            **self._nvml.read(),
        }

    def _mfu(self, samples_per_second: float) -> float | None:
        if not self._measured:
            self._measured = True
            metrics = self._config.metrics
            self._rates = rates(self._device, self._config.precision, metrics.peak_tflops)
            self.clock.restart()
            if self._rates:
                self._recorder.event("peak", formula=FORMULA, **dataclasses.asdict(self._rates))
        if self._rates is None or not self._flops_per_sample:
            return None
        return self._rates.mfu(self._flops_per_sample * samples_per_second, self._world_size)

    def _profiled(self, profile: Profile) -> None:
        self.clock.exposed(self._profiler.exposed_share, profile.step)
        self._recorder.profile(profile)


def throughput_unit(config: Config) -> tuple[str, int]:
    """What is counted per second, and how many of them a sample has."""
    if isinstance(config.model, LlamaConfig | Gpt2Config):
        return "tokens", config.data.seq_len or config.model.seq_len
    return ("images" if isinstance(config.model, ResNetConfig) else "samples"), 1


def _parts(window: list[Split]) -> dict[str, float | None]:
    parts: dict[str, float | None] = {
        f"{name}_s": sum(getattr(split, name) for split in window) / len(window)
        for name in ("data", "compute", "communication", "checkpoint", "other", "own")
    }
    if window[-1].source == NOT_MEASURED:
        parts["communication_s"] = None
    return parts
