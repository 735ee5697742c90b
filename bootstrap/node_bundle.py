"""The bundle of a machine that sets itself up: our code, wheels, the cluster's spec and inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bootstrap.bundle import Bundle, archive, files

# What every node runs, and what it copies to the shared filesystem.
ROOMS = ("bootstrap", "cluster", "slurm", "trainer", "simulator/calibrate")
DESCRIPTION = "description"
SPEC = f"{DESCRIPTION}/spec.json"
INVENTORY = f"{DESCRIPTION}/inventory.json"
CLOUD = f"{DESCRIPTION}/cloud.json"
PUBLIC_KEY = f"{DESCRIPTION}/ssh_public_key"


def pack_node(
    root: Path, wheels: Path, cluster_files: Mapping[str, bytes], target_folders: Sequence[str] = ()
) -> Bundle:
    """Pack the rooms, the target's own node code, the wheels and the files of one cluster.

    `cluster_files` go by the names above, plus `software.training_lock` where it is not one of ours.
    """
    content = {f"wheels/{wheel.name}": wheel.read_bytes() for wheel in sorted(wheels.glob("*.whl"))}
    content |= cluster_files
    return archive(root, files(root, (*ROOMS, *target_folders)), content)
