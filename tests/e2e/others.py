"""How much of the machine somebody else used meanwhile: what is measured then is that much slower at most."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import docker

from tests.harness import Stack


def share_of_others(cluster: Stack) -> Callable[[], float]:
    """Begins to watch; what it returns tells the share of all cores that others than this cluster's nodes used."""
    names = [f"muster-{cluster.cluster}-{node['name']}" for node in cluster.inventory["nodes"]]
    all_before, idle_before, ours_before = *_machine_s(), _containers_s(names)

    def share() -> float:
        all_now, idle_now = _machine_s()
        whole, idle, ours = all_now - all_before, idle_now - idle_before, _containers_s(names) - ours_before
        return min(max(0.0, (whole - idle - ours) / whole), 0.9)

    return share


def _machine_s() -> tuple[float, float]:
    """Seconds of all cores since the machine started: all of them, and those in which nothing ran."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    idle, waiting = ticks[3:5]
    hertz = os.sysconf("SC_CLK_TCK")
    return sum(ticks) / hertz, (idle + waiting) / hertz


def _containers_s(names: list[str]) -> float:
    client = docker.from_env()
    stats = [client.containers.get(name).stats(stream=False, one_shot=True) for name in names]
    return sum(1e-9 * one["cpu_stats"]["cpu_usage"]["total_usage"] for one in stats)
