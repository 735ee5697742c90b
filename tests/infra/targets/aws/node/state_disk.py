"""A disk that outlives its machine, like an EBS volume: a loop device that looks like an NVMe disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import docker

from cluster import names
from infra.targets.local.build import node_container

DISK = "nvme9n1"
MODEL = "Amazon Elastic Block Store"
SIZE = "512M"
# EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (Linux fs/ext4/ext4.h): discard what is not on the disk yet.
_SHUTDOWN = "import fcntl, os; fcntl.ioctl(os.open('/state', os.O_RDONLY), 0x8004587D, (2).to_bytes(4, 'little'))"
_LOOPS = """mknod /dev/loop-control c 10 237
for number in 0 1 2 3 4 5 6 7; do mknod /dev/loop$number b 7 $number; done
"""


@dataclass(frozen=True)
class StateDisk:
    """A disk under test."""

    volume: str
    """Id of the volume in EC2."""
    device: str
    """Path of the loop device on Docker's host."""
    kernel: str
    """Docker volume in place of /sys/block."""

    @property
    def lose_power(self) -> str:
        return f'python3 -c "{_SHUTDOWN}"'


@contextmanager
def state_disk(cluster: str, volume: str) -> Iterator[StateDisk]:
    """Create a blank disk and yield it."""
    labels = {names.CLUSTER: cluster}
    volumes = docker.from_env().volumes
    content, kernel = (volumes.create(names.volume(cluster, kind), labels=labels) for kind in ("disk", "kernel"))
    device_files = f"/kernel/{DISK}/device"
    script = f"""truncate -s {SIZE} /disk/content
        mkdir -p {device_files}
        echo {volume.replace("-", "")} >{device_files}/serial
        echo {MODEL} >{device_files}/model
        losetup --find --show /disk/content"""
    device = ""
    try:
        device = _run_with_loops(script, {content.name: {"bind": "/disk"}, kernel.name: {"bind": "/kernel"}})
        yield StateDisk(volume, device, kernel.name)
    finally:
        if device:
            _run_with_loops(f"losetup --detach {device}", {})
        for created in (content, kernel):
            created.remove(force=True)


def _run_with_loops(script: str, volumes: dict[str, dict[str, str]]) -> str:
    """Run a script in a container that may manage loop devices, so that the tests need not run as root."""
    container = docker.from_env().containers.create(
        names.IMAGE,
        ["sh", "-c", f"set -e\n{_LOOPS}{script}"],
        entrypoint="",
        cap_add=["SYS_ADMIN"],
        security_opt=list(node_container.UNCONFINED),
        device_cgroup_rules=["b 7:* rwm", "c 10:237 rwm"],
        volumes=volumes,
        network_mode="none",
    )
    try:
        container.start()
        code, output = container.wait()["StatusCode"], container.logs().decode().strip()
        assert code == 0, output
    finally:
        container.remove(force=True)
    return str(output)
