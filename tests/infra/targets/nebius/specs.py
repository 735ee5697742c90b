"""Specs for target nebius."""

from __future__ import annotations

from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec

Data = dict[str, Any]


def spec_data(**changes: Any) -> Data:
    """Return the description of two machines with eight H100 each, on a fabric."""
    data: Data = {
        "name": "demo",
        "target": "nebius",
        "groups": {"gpu": {"count": 2, "fabric": "infiniband", "gpus": {"count": 8, "kind": "real", "type": "h100"}}},
        "login": {"enabled": False},
        "storage": {"shared": {"kind": "volume", "size_gb": 1024, "keep": False}},
        "nebius": {
            "project": "project-e00test",
            "ssh_from": ["203.0.113.7/32"],
            "image": "computeimage-e00debian",
            "groups": {"gpu": {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb", "fabric": "fabric-3"}},
        },
    }
    return data | changes


def make_spec(**changes: Any) -> ClusterSpec:
    """Return the cluster that `spec_data` describes."""
    return load_spec(spec_data(**changes))
