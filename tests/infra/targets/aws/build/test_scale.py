"""The program grows with groups, not with nodes: resources, time and memory of 3 groups with 512 nodes."""

from __future__ import annotations

import time
import tracemalloc

from cluster.spec import ClusterSpec
from infra.targets.registry import load_spec as load
from tests.infra.targets.aws.build.capture import CapturedResource, capture

NODES = (("a", 256), ("b", 128), ("c", 128))
# Of the processor, so that a busy machine does not count; ten times what it takes.
MOST_SECONDS = 60.0


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


def measured(share: int) -> tuple[tuple[CapturedResource, ...], float, int]:
    tracemalloc.start()
    began = time.process_time()
    resources = capture(spec(share), "large", preview=True)
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return resources, seconds, peak


def test_512_nodes_take_no_more_resources_than_16() -> None:
    capture(spec(32), "large")  # libraries are loaded once
    few, _, small = measured(32)
    many, seconds, large = measured(1)
    shown = f"{len(many)} resources, {seconds:.1f} s of processor, {large / 2**20:.0f} MiB"
    print(f"512 nodes: {shown}; 16 nodes: {small / 2**20:.0f} MiB")
    assert len(many) == len(few)
    assert seconds < MOST_SECONDS
    assert large < 2 * small + 2**24
