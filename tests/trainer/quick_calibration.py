"""A calibration with few and small measurements, for tests of what is measured and not of how exactly.

torchrun ... -m tests.trainer.quick_calibration OPTION ...
"""

from __future__ import annotations

import sys
from typing import Any

from simulator.calibrate import arithmetic, ranks, saves, short_runs
from simulator.calibrate.__main__ import main
from trainer import bandwidth

MEGABYTE = 2**20
LESS: tuple[tuple[Any, str, Any], ...] = (
    (arithmetic, "COPY_BYTES", {"cpu": MEGABYTE}),
    (bandwidth, "SIZES", tuple(size for size in bandwidth.SIZES if size <= 4 * MEGABYTE)),
    (ranks, "BATCH_S", 5e-4),
    (ranks, "MIN_BATCHES", 6),
    (saves, "BYTES_PER_RANK", {"cpu": MEGABYTE}),
    (short_runs, "STEPS", 60),
)

if __name__ == "__main__":
    for module, name, value in LESS:
        setattr(module, name, value)
    sys.exit(main(sys.argv[1:]))
