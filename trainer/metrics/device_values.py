"""Numbers that stay on the device until a step later, so that reading them never holds the step up."""

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
    """A pinned landing place and the event that says the copy has come."""

    copy: torch.Tensor
    done: Any


class DeviceValues:
    """`put` starts a copy to the host and returns at once; `take` gives every step but the newest.

    Call `take` after the next step's work has been queued: the wait is then for a step that the device has behind it,
    with work still queued, so it costs nothing. The host never runs more than one step ahead. The delay is the same on
    the CPU: decisions made from these values fall on the same step on every device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._pending: deque[tuple[int, tuple[str, ...], _Slot | list[float]]] = deque()
        self._free: list[_Slot] = []

    def put(self, step: int, values: Mapping[str, torch.Tensor]) -> None:
        tensors = [value.detach() for value in values.values()]
        landed = self._copy(tensors) if self._cuda else [float(tensor) for tensor in tensors]
        self._pending.append((step, tuple(values), landed))

    def take(self) -> list[Reading]:
        return self._read(keep=1)

    def drain(self) -> list[Reading]:
        """Everything, waiting for the newest step too: at the end, or before a decision that cannot be late."""
        return self._read(keep=0)

    def _copy(self, tensors: list[torch.Tensor]) -> _Slot:
        # float64 holds every float32 exactly: a loss in the log can be compared bit for bit.
        packed = torch.stack([tensor.reshape(()).to(torch.float64) for tensor in tensors])
        slot = self._slot(len(tensors))
        slot.copy.copy_(packed, non_blocking=True)
        slot.done.record()
        return slot

    def _slot(self, count: int) -> _Slot:
        for place, slot in enumerate(self._free):
            if slot.copy.numel() == count:
                return self._free.pop(place)
        return _Slot(torch.empty(count, dtype=torch.float64, pin_memory=True), torch.cuda.Event())

    def _read(self, keep: int) -> list[Reading]:
        readings = []
        while len(self._pending) > keep:
            step, names, landed = self._pending.popleft()
            if isinstance(landed, _Slot):
                landed.done.synchronize()
                self._free.append(landed)
                landed = landed.copy.tolist()
            readings.append(Reading(step, dict(zip(names, landed, strict=True))))
        return readings
