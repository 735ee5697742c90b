"""Seconds of single kernels on one kind of GPU: matrix products by their tiles, and what memory bandwidth bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from simulator.hardware.rates import Rates
from simulator.hardware.system import Gpu

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.55))
"""Rows, columns and speed of the tiles that a matmul library picks from."""
SPLIT = 8
"""Most parts that the inner dimension of a product is cut into when there are fewer tiles than multiprocessors."""
SPLIT_LEAST = 512
"""Shortest part of an inner dimension that is worth a tile of its own."""
ALIGNED = 128
"""Numbers that the sides of a matrix are a multiple of where libraries have their best kernels."""
SCALED = "fp8 scaled"
CAST_BYTES = {"fp8": 6, SCALED: 8}
"""Read and written to make an fp8 copy of a number and a transposed one; more where its scale is sought first."""
UNTHROTTLED = 0.78
"""Dense TFLOP/s per watt of an A100."""
SLOWEST = 0.6
"""Share of its clocks that any GPU keeps; none that is sold needs it."""
THROTTLED = 1.5
"""How the loss grows with TFLOP/s per watt beyond that: the further, the lower the clocks must go."""


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Of a GPU, forward and backward."""

    forward: float = 0.0
    inputs_back: float = 0.0
    weights_back: float = 0.0
    """Gradients of weights: nobody needs them where only adapters learn."""

    @property
    def backward(self) -> float:
        return self.inputs_back + self.weights_back

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(
            self.forward + other.forward, self.inputs_back + other.inputs_back, self.weights_back + other.weights_back
        )


class Kernels:
    """Products are kept, since a search asks for the same shapes again."""

    def __init__(self, gpu: Gpu, rates: Rates) -> None:
        self.gpu, self.rates = gpu, rates
        self._cooled = self._share_when_hot()
        self._bytes_per_s = gpu.memory_gb_s * 1e9 * rates.memory
        self._products: dict[tuple[int, int, int, int, str], PassSeconds] = {}

    def product(self, rows: float, inputs: int, outputs: int, dtype: str, together: int = 1) -> PassSeconds:
        """Forward, and both products of backward; `together` equal ones run as one kernel."""
        rows = max(1, ceil(rows))
        key = (rows, inputs, outputs, together, dtype)
        found = self._products.get(key)
        if found is None:
            forward = self._matmul(rows, outputs, inputs, dtype, together)
            inputs_back = self._matmul(rows, inputs, outputs, dtype, together)
            weights_back = self._matmul(inputs, outputs, rows, dtype, together)
            if dtype in CAST_BYTES:
                forward += self.moved(CAST_BYTES[dtype] * together * rows * inputs)
                inputs_back += self.moved(CAST_BYTES[dtype] * together * rows * outputs)
            found = self._products[key] = PassSeconds(forward, inputs_back, weights_back)
        return found

    def moved(self, size: float) -> float:
        """Bytes read or written."""
        return size / self._bytes_per_s

    def peak(self, dtype: str) -> float:
        """The best matmul rate of this GPU in FLOP/s."""
        peaks = self.gpu.peak_tflops
        peak = peaks.get(dtype.split(maxsplit=1)[0]) or peaks.get("fp16", 0.0)
        kept = self.rates.fp8 if dtype in CAST_BYTES else 1.0
        return peak * 1e12 * self.gpu.reached * kept * self._cooled

    def _matmul(self, m: int, n: int, k: int, dtype: str, together: int) -> float:
        if self.gpu.products is not None:
            return together * self.gpu.products.seconds(m, n, k, dtype)
        seconds = self.gpu.multiprocessors / (self.peak(dtype) * self.rates.matmul)
        wave = self.rates.tile_us * 1e-6
        ways = _tilings(m, n, k, together, self.gpu.multiprocessors)
        best = min(waves * (operations * seconds + wave) for waves, operations in ways)
        if n % ALIGNED or k % ALIGNED:
            best /= self.rates.ragged
        size = 1 if dtype in CAST_BYTES else 2
        return max(best, self.moved(together * (size * (m * k + k * n) + 2 * m * n)))

    def _share_when_hot(self) -> float:
        """A GPU with more arithmetic per watt than an A100 runs at lower clocks under a long load."""
        dense = self.gpu.peak_tflops.get("fp16", 0.0) / self.gpu.watts
        return max(SLOWEST, 1 - self.rates.throttle * max(0.0, dense - UNTHROTTLED) ** THROTTLED)


@lru_cache(maxsize=1 << 16)
def _tilings(m: int, n: int, k: int, together: int, multiprocessors: int) -> tuple[tuple[int, float], ...]:
    """For each size of tile: waves of them, and operations of one tile as if it ran at full speed."""
    found = []
    for rows, columns, speed in TILES:
        tiles = ceil(m / rows) * ceil(n / columns) * together
        split = 1
        if tiles < multiprocessors:
            split = max(1, min(SPLIT, multiprocessors // tiles, k // SPLIT_LEAST))
        found.append((ceil(tiles * split / multiprocessors), 2 * rows * columns * k / split / speed))
    return tuple(found)


def non_fp8_dtype(dtype: str) -> str:
    """What stays out of fp8: attention, the head, the router."""
    return "bf16" if dtype == "fp8" else dtype
