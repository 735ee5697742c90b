"""The share of CPU time used outside a test cluster, from which tests of timings derive their tolerance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import docker

MAX_SHARE = 0.9


def watch_other_load(containers: list[str]) -> Callable[[], float]:
    """Return a function that gives the share of CPU time used outside these containers since this call."""
    total_before, idle_before, own_before = *_machine_s(), _containers_s(containers)

    def share() -> float:
        total_now, idle_now = _machine_s()
        total, idle, own = total_now - total_before, idle_now - idle_before, _containers_s(containers) - own_before
        return min(max(0.0, (total - idle - own) / total), MAX_SHARE)

    return share


def _machine_s() -> tuple[float, float]:
    """Return total and idle core seconds since the machine started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    idle, waiting = ticks[3:5]
    hertz = os.sysconf("SC_CLK_TCK")
    return sum(ticks) / hertz, (idle + waiting) / hertz


def _containers_s(names: list[str]) -> float:
    client = docker.from_env()
    stats = [client.containers.get(name).stats(stream=False, one_shot=True) for name in names]
    return sum(1e-9 * sample["cpu_stats"]["cpu_usage"]["total_usage"] for sample in stats)
