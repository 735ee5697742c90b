"""Predict the seconds of single kernels: matrix products by their tiles, others by memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from simulator.hardware.rates import Rates
from simulator.hardware.system import Gpu

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.55))
"""Rows, columns and relative speed of the tiles that a matmul library chooses from."""
MAX_SPLIT_K = 8
"""Largest split of the inner dimension when there are fewer tiles than multiprocessors."""
MIN_SPLIT_INNER = 512
"""Shortest part of a split inner dimension."""
ALIGNMENT = 128
"""Matrix sides must be a multiple of this for a library's best kernels."""
SCALED = "fp8 scaled"
"""fp8 products that compute the scale of each tensor just before the cast."""
CAST_BYTES = {"fp8": 6, SCALED: 8}
"""Bytes read and written per number to cast it to fp8 and transpose the copy; more if its scale is computed first."""
A100_TFLOPS_PER_WATT = 0.78
"""Dense fp16 TFLOP/s per watt of an A100, which does not throttle."""
MIN_CLOCK_SHARE = 0.6
"""Lower bound of a throttled clock; no current GPU reaches it."""
THROTTLE_EXPONENT = 1.5
"""How the loss of clocks grows with TFLOP/s per watt beyond an A100's."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of forward and backward on one GPU."""

    forward: float = 0.0
    input_gradients: float = 0.0
    weight_gradients: float = 0.0
    """Gradients of weights, which adapters do not need."""

    @property
    def backward(self) -> float:
        return self.input_gradients + self.weight_gradients

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(
            self.forward + other.forward,
            self.input_gradients + other.input_gradients,
            self.weight_gradients + other.weight_gradients,
        )


class Kernels:
    """Kernel times of one kind of GPU, cached because a search repeats the same shapes."""

    def __init__(self, gpu: Gpu, rates: Rates) -> None:
        self.gpu, self.rates = gpu, rates
        self._clock_share = self._sustained_clock_share()
        self._bytes_per_s = gpu.memory_gb_s * 1e9 * rates.memory
        self._products: dict[tuple[int, int, int, int, str], PassSeconds] = {}

    def product(self, rows: float, inputs: int, outputs: int, dtype: str, together: int = 1) -> PassSeconds:
        """Return the seconds of a product, forward and backward; `together` equal ones run as one kernel."""
        rows = max(1, ceil(rows))
        key = (rows, inputs, outputs, together, dtype)
        seconds = self._products.get(key)
        if seconds is None:
            forward = self._matmul(rows, outputs, inputs, dtype, together)
            input_gradients = self._matmul(rows, inputs, outputs, dtype, together)
            weight_gradients = self._matmul(inputs, outputs, rows, dtype, together)
            if dtype in CAST_BYTES:
                forward += self.moved(CAST_BYTES[dtype] * together * rows * inputs)
                input_gradients += self.moved(CAST_BYTES[dtype] * together * rows * outputs)
            seconds = self._products[key] = PassSeconds(forward, input_gradients, weight_gradients)
        return seconds

    def moved(self, size: float) -> float:
        """Return the seconds to read or write `size` bytes."""
        return size / self._bytes_per_s

    def peak(self, dtype: str) -> float:
        """Return the best matmul rate of this GPU in FLOP/s."""
        peaks = self.gpu.peak_tflops
        peak = peaks.get(dtype.split(maxsplit=1)[0]) or peaks.get("fp16", 0.0)
        fp8_share = self.rates.fp8 if dtype in CAST_BYTES else 1.0
        return peak * 1e12 * self.gpu.reached * fp8_share * self._clock_share

    def _matmul(self, m: int, n: int, k: int, dtype: str, together: int) -> float:
        if self.gpu.products is not None:
            return together * self.gpu.products.seconds(m, n, k, dtype)
        seconds_per_operation = self.gpu.multiprocessors / (self.peak(dtype) * self.rates.matmul)
        wave = self.rates.tile_us * 1e-6
        tilings = _tilings(m, n, k, together, self.gpu.multiprocessors)
        best = min(waves * (operations * seconds_per_operation + wave) for waves, operations in tilings)
        if n % ALIGNMENT or k % ALIGNMENT:
            best /= self.rates.ragged
        size = 1 if dtype in CAST_BYTES else 2
        return max(best, self.moved(together * (size * (m * k + k * n) + 2 * m * n)))

    def _sustained_clock_share(self) -> float:
        """Return the share of its clocks that a GPU sustains: denser GPUs than an A100 throttle."""
        dense = self.gpu.peak_tflops.get("fp16", 0.0) / self.gpu.watts
        return max(
            MIN_CLOCK_SHARE, 1 - self.rates.throttle * max(0.0, dense - A100_TFLOPS_PER_WATT) ** THROTTLE_EXPONENT
        )


@lru_cache(maxsize=1 << 16)
def _tilings(m: int, n: int, k: int, together: int, multiprocessors: int) -> tuple[tuple[int, float], ...]:
    """Return the waves and the operations of one tile at full speed, for each tile size."""
    tilings = []
    for rows, columns, speed in TILES:
        tiles = ceil(m / rows) * ceil(n / columns) * together
        split = 1
        if tiles < multiprocessors:
            split = max(1, min(MAX_SPLIT_K, multiprocessors // tiles, k // MIN_SPLIT_INNER))
        tilings.append((ceil(tiles * split / multiprocessors), 2 * rows * columns * k / split / speed))
    return tuple(tilings)


def non_fp8_dtype(dtype: str) -> str:
    """Return the dtype of what does not run in fp8: attention, the output head, the router."""
    return "bf16" if dtype == "fp8" else dtype
