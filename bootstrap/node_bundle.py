"""The bundle of a machine that sets itself up: our code, wheels, the cluster's spec and inventory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bootstrap.bundle import Bundle, archive, files

# What the node runs, and what it ships on to the shared filesystem.
ROOMS = ("bootstrap", "infra/spec", "infra/inventory", "slurm", "trainer", "simulator/calibrate")
SINGLE = (
    "infra/__init__.py",
    "infra/catalog/__init__.py",
    "infra/catalog/software.py",
    "infra/catalog/data/software.yaml",
)
CLUSTER = "cluster"
SPEC = f"{CLUSTER}/spec.json"
INVENTORY = f"{CLUSTER}/inventory.json"
CLOUD = f"{CLUSTER}/cloud.json"
PUBLIC_KEY = f"{CLUSTER}/ssh_public_key"


def pack_node(root: Path, wheels: Path, cluster_files: Mapping[str, bytes]) -> Bundle:
    """`cluster_files` by the names above; also `software.training_lock`, where it is none of ours."""
    content = {name: (root / name).read_bytes() for name in SINGLE}
    content |= {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in sorted(wheels.glob("*.whl"))}
    content |= cluster_files
    return archive(root, files(root, ROOMS), content)
