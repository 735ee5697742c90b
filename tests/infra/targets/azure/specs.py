"""Specs for target azure."""

from __future__ import annotations

from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec

Data = dict[str, Any]
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
IMAGE = "example:slurm-hpc:2404:24.04.2025091701"

GALLERY_IMAGE = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/images/providers/Microsoft.Compute"
    "/galleries/ours/images/slurm/versions/1.0.0"
)


def spec_data(**changes: Any) -> Data:
    """Return the description of two machines with eight H100 each, in one placement group."""
    data: Data = {
        "name": "demo",
        "target": "azure",
        "groups": {"gpu": {"count": 2, "fabric": "infiniband", "gpus": {"count": 8, "kind": "real", "type": "h100"}}},
        "login": {"enabled": False},
        "storage": {"shared": {"kind": "volume", "size_gb": 8192, "keep": False}},
        "azure": {
            "subscription": SUBSCRIPTION,
            "region": "eastus",
            "ssh_from": ["203.0.113.7/32"],
            "image": IMAGE,
            "groups": {"gpu": {"size": "Standard_ND96isr_H100_v5"}},
        },
    }
    return data | changes


def make_spec(**changes: Any) -> ClusterSpec:
    """Return the cluster that `spec_data` describes."""
    return load_spec(spec_data(**changes))
