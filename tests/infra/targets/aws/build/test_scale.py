"""Resources, time and memory of the program grow with groups, not with nodes (3 groups, 512 nodes)."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec as load
from tests.infra.targets.aws.build.capture import CapturedResource, capture

NODES = (("a", 256), ("b", 128), ("c", 128))
# CPU time, so that other load does not matter; about ten times the usual value.
MAX_CPU_S = 60.0


def spec(share: int) -> ClusterSpec:
    groups = {name: {"instance_type": "p5.48xlarge", "count": count // share, "fabric": "efa"} for name, count in NODES}
    return load(
        {
            "name": "large",
            "target": "aws",
            "aws": {"region": "us-east-1", "zones": ["us-east-1a"]},
            "groups": groups,
            "storage": {"shared": {"kind": "fsx-lustre"}},
        }
    )


def measure(share: int) -> tuple[tuple[CapturedResource, ...], float, int]:
    tracemalloc.start()
    began = time.process_time()
    resources = capture(spec(share), "large", preview=True)
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return resources, seconds, peak


@pytest.mark.nightly
def test_512_nodes_take_no_more_resources_than_16() -> None:
    capture(spec(32), "large")  # Load the libraries before measuring.
    few, _, small = measure(32)
    many, seconds, large = measure(1)
    figures = f"{len(many)} resources, {seconds:.1f} s of CPU time, {large / 2**20:.0f} MiB"
    print(f"512 nodes: {figures}; 16 nodes: {small / 2**20:.0f} MiB")
    assert len(many) == len(few)
    assert seconds < MAX_CPU_S
    assert large < 2 * small + 2**24
