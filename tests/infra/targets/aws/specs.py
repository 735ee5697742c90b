"""A small good cluster on AWS to lay changes over."""

from __future__ import annotations

from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec as load


def good(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "target": "aws",
        "aws": {"region": "us-east-1"},
        "groups": {"gpu": {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa"}},
        "storage": {"shared": {"kind": "efs"}},
        **changes,
    }


def spec(**changes: Any) -> ClusterSpec:
    return load(good(**changes))


def group(**fields: Any) -> dict[str, Any]:
    """One group `gpu`, of p5 unless it says otherwise."""
    return {"gpu": {"instance_type": "p5.48xlarge", "count": 2, **fields}}
