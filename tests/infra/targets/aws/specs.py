"""A small valid cluster on AWS, to which tests apply changes."""

from __future__ import annotations

from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec as load


def good(**changes: Any) -> dict[str, Any]:
    """Return the data of a valid spec, with changes."""
    return {
        "name": "demo",
        "target": "aws",
        "aws": {"region": "us-east-1"},
        "groups": {"gpu": {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa"}},
        "storage": {"shared": {"kind": "efs"}},
        **changes,
    }


def spec(**changes: Any) -> ClusterSpec:
    """Return a valid spec, with changes."""
    return load(good(**changes))


def group(**fields: Any) -> dict[str, Any]:
    """Return the group `gpu`, with p5 nodes unless `fields` name another type."""
    return {"gpu": {"instance_type": "p5.48xlarge", "count": 2, **fields}}
