"""Sizes and throughputs in which FSx for Lustre is sold."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import Storage

THROUGHPUTS = (125, 250, 500, 1000)
"""MB/s per TiB of PERSISTENT_2 (docs.aws.amazon.com/fsx/latest/LustreGuide/managing-throughput-capacity.html)."""
SMALLEST_GB = 1200
STEP_GB = 2400
# docs.aws.amazon.com/fsx/latest/LustreGuide/efa-file-systems.html
EFA_SMALLEST_GB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
DEFAULT_THROUGHPUT = 250


def size_gb(storage: Storage) -> int:
    """Return the capacity of a filesystem in GB; the smallest possible if the spec sets none."""
    smallest = EFA_SMALLEST_GB[throughput(storage)] if storage.efa else SMALLEST_GB
    return storage.size_gb or smallest


def throughput(storage: Storage) -> int:
    """Return the throughput of a filesystem in MB/s per TiB."""
    return storage.throughput or DEFAULT_THROUGHPUT


def find_problems(storage: Storage) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for every rule of FSx that the storage breaks."""
    if throughput(storage) not in THROUGHPUTS:
        yield "throughput", f"{storage.throughput} is not sold; allowed: {', '.join(map(str, THROUGHPUTS))}"
        return
    if size_gb(storage) != SMALLEST_GB and size_gb(storage) % STEP_GB:
        yield "size_gb", f"{storage.size_gb} is not sold; allowed: {SMALLEST_GB}, or a multiple of {STEP_GB}"
    smallest = EFA_SMALLEST_GB[throughput(storage)]
    if storage.efa and size_gb(storage) < smallest:
        yield "size_gb", f"{storage.size_gb} is too small for EFA at {throughput(storage)}; allowed: {smallest} or more"
