"""When a node that is cut off stops its jobs: before Slurm can start them elsewhere.

It does so only if the node itself, not the controller, is unreachable. slurmctld marks a node DOWN after SlurmdTimeout
and requeues its jobs, which start again once their credentials have expired. It contacts a node every third of that
time, so it may have heard of it last a third before the cut. A node stops its jobs after half the time. They are
stopped and not killed: if the cut ends before, they run on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["wait", "stop", "rejoin"]
"""Do nothing; stop all jobs; ask slurmctld which jobs it has here, and end or continue what runs."""
_SHARE = 0.5
_PAUSE_SHARE = 0.1
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
_TIMEOUT = re.compile(r"^SlurmdTimeout=(\d+)", re.MULTILINE)
_CONTROLLER = re.compile(r"^SlurmctldHost=([^\s(]+)(?:\(([^)]+)\))?", re.MULTILINE)
_NODE = re.compile(r"^NodeName=(\S+) NodeAddr=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Cluster:
    """What a node has to know of its cluster to notice that it is cut off."""

    controller: str
    peers: Sequence[str]
    """Addresses of other compute nodes: while one of them answers, the controller may be what is gone."""
    timeout_s: float
    """Time after which slurmctld marks a silent node DOWN; 0 if it never does."""

    @property
    def limit_s(self) -> float:
        """Time without an answer after which jobs are stopped."""
        return self.timeout_s * _SHARE

    @property
    def pause_s(self) -> float:
        """Time between two looks at the controller."""
        return min(MAX_PAUSE_S, max(MIN_PAUSE_S, self.timeout_s * _PAUSE_SHARE))


def parse_cluster(conf: str, node: str) -> Cluster | None:
    """Return what the configuration that slurmd has fetched tells about the cluster; None if it is not complete."""
    controller, timeout = _CONTROLLER.search(conf), _TIMEOUT.search(conf)
    if controller is None or timeout is None:
        return None
    peers = tuple(address for name, address in _NODE.findall(conf) if name != node)
    return Cluster(controller[2] or controller[1], peers, float(timeout[1]))


def decide(*, answers: bool, silent_s: float, limit_s: float, stopped: bool, cut_off: bool) -> Verdict:
    """Return what to do after a look at the controller.

    `silent_s` is how long it had not answered before, `stopped` whether jobs are stopped, and `cut_off` whether no
    other machine of the cluster answers either.
    """
    if answers:
        return "rejoin" if stopped or 0 < limit_s <= silent_s else "wait"
    if stopped:
        # Again, because a step that was just starting may have started a process since.
        return "stop"
    return "stop" if 0 < limit_s <= silent_s and cut_off else "wait"
