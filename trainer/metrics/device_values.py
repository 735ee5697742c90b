"""Read values from the device one step late, so that reading them never delays a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Reading:
    """The values of one step, on the host."""

    step: int
    values: dict[str, float]


@dataclass
class _Slot:
    """A pinned buffer on the host and the event at the end of the copy into it."""

    copy: torch.Tensor
    done: Any


class DeviceValues:
    """Values on their way to the host: `put` starts a copy, `take` returns every step except the newest.

    Call `take` after the next step's work has been queued: the device then has work while the host waits, so the wait
    costs nothing. The host never runs more than one step ahead. On a CPU the delay is the same, so that decisions based
    on these values are made at the same step on every device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._pending: deque[tuple[int, tuple[str, ...], _Slot | list[float]]] = deque()
        self._free: list[_Slot] = []

    def put(self, step: int, values: Mapping[str, torch.Tensor]) -> None:
        tensors = [value.detach() for value in values.values()]
        pending = self._copy(tensors) if self._cuda else [float(tensor) for tensor in tensors]
        self._pending.append((step, tuple(values), pending))

    def take(self) -> list[Reading]:
        return self._read(leave=1)

    def drain(self) -> list[Reading]:
        """Return all steps, waiting for the newest; for the end of the run or a decision that cannot be delayed."""
        return self._read(leave=0)

    def _copy(self, tensors: list[torch.Tensor]) -> _Slot:
        # float64 represents every float32 exactly, so losses in the log can be compared bit for bit.
        packed = torch.stack([tensor.reshape(()).to(torch.float64) for tensor in tensors])
        slot = self._get_slot(len(tensors))
        slot.copy.copy_(packed, non_blocking=True)
        slot.done.record()
        return slot

    def _get_slot(self, count: int) -> _Slot:
        for index, slot in enumerate(self._free):
            if slot.copy.numel() == count:
                return self._free.pop(index)
        return _Slot(torch.empty(count, dtype=torch.float64, pin_memory=True), torch.cuda.Event())

    def _read(self, leave: int) -> list[Reading]:
        readings = []
        while len(self._pending) > leave:
            step, names, pending = self._pending.popleft()
            if isinstance(pending, _Slot):
                pending.done.synchronize()
                self._free.append(pending)
                pending = pending.copy.tolist()
            readings.append(Reading(step, dict(zip(names, pending, strict=True))))
        return readings
