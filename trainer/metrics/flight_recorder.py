"""Read torch's flight recorders, which list the collectives of this process."""

from __future__ import annotations

import json
import time
from typing import Any

import torch

FlightEntry = dict[str, Any]
"""An entry of torch's flight recorder."""
_POLL_S = 0.002
_LIMIT_S = 60.0


def read_flight_recorders() -> list[FlightEntry]:
    """Return the entries of the flight recorders, oldest first; none if they are off (TORCH_FR_BUFFER_SIZE).

    NCCL has its own recorder. A run on GPUs uses gloo groups as well, so both may have entries.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    from torch._C import _distributed_c10d  # noqa: PLC0415 - missing in builds without distributed

    entries: dict[tuple[str, int], FlightEntry] = {}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(_distributed_c10d, name, None)
        for entry in json.loads(dump()).get("entries", []) if dump else []:
            entries[entry["profiling_name"], entry["time_created_ns"]] = entry
    return sorted(entries.values(), key=lambda entry: entry["time_created_ns"])


def wait_for_gloo(since_ns: int, limit_s: float = _LIMIT_S) -> None:
    """Wait until gloo's threads have left all collectives that began after a time.

    A collective's result can be used a little before its thread has recorded the end for a running profiler. If the
    profiler is stopped in between, torch writes the end into memory that it has freed, and the process crashes later.
    """
    deadline = time.monotonic() + limit_s
    time.sleep(_POLL_S)
    while _count_running(since_ns) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _count_running(since_ns: int) -> int:
    # A message between two ranks is recorded by the thread that waits for it, and never retired.
    return sum(
        entry["time_created_ns"] >= since_ns
        and entry["profiling_name"].startswith("gloo:")
        and not entry["is_p2p"]
        and not entry["retired"]
        for entry in read_flight_recorders()
    )
