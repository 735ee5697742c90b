"""Which kernels take the time of a training step, and how long the GPU waits between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_NAME_LENGTH = 70
_KINDS = {
    "matmul": ("nvjet", "gemm", "cutlass", "cublas", "xmma"),
    "attention": ("flash", "fmha", "sdpa", "attention", "cudnn::fusion"),
    "convolution": ("conv", "fprop", "dgrad", "wgrad"),
}
"""Parts of the names of library kernels, by kind; attention is searched for first."""


@dataclass(frozen=True)
class Profile:
    """The kernels of one step."""

    step_ms: float
    idle_ms: float
    """Time in which no kernel ran."""
    kernels: dict[str, float]
    """Milliseconds of each kernel, the largest first."""

    @property
    def other_share(self) -> float:
        """The share of the step that is neither a matrix product, nor a convolution, nor attention."""
        library = sum(took for name, took in self.kernels.items() if classify(name) != "other")
        return 1 - library / self.step_ms

    def describe(self, count: int = 10) -> str:
        """Return the largest kernels and the shares, as lines."""
        largest = list(self.kernels.items())[:count]
        lines = [f"  {took:8.2f} ms  {classify(name):<11} {name[:_NAME_LENGTH]}" for name, took in largest]
        shares = f"neither matmul, convolution nor attention: {self.other_share:.1%} of {self.step_ms:.1f} ms"
        return "\n".join([*lines, f"  {shares}; idle: {self.idle_ms:.2f} ms"])


def profile_steps(run: Callable[[], Any], steps: int = 3) -> Profile:
    """Profile some steps and return the mean of one."""
    import torch  # noqa: PLC0415 - all else works without it

    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
    events = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    took: dict[str, float] = {}
    for event in events:
        took[event.name] = took.get(event.name, 0.0) + event.device_time / 1e3 / steps
    intervals = sorted((event.time_range.start, event.time_range.end) for event in events)
    span, busy = measure_busy(intervals)
    kernels = dict(sorted(took.items(), key=lambda item: -item[1]))
    return Profile(span / 1e3 / steps, (span - busy) / 1e3 / steps, kernels)


def measure_busy(intervals: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the time from the first start to the last end, and how much of it intervals cover; they are sorted."""
    busy, last = 0.0, intervals[0][0]
    for start, end in intervals:
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
    return last - intervals[0][0], busy


def classify(name: str) -> str:
    """Return the kind of a kernel by its name."""
    lowered = name.lower()
    if "triton" in lowered:
        return "other"
    for kind in ("attention", "convolution", "matmul"):
        if any(part in lowered for part in _KINDS[kind]):
            return kind
    return "other"
