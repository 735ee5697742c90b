"""EBS volumes of a rehearsal: files behind loop devices that look like NVMe disks and outlive their machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from docker.types import Mount

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.short_container import run_short_container
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container

MODEL = "Amazon Elastic Block Store"
LOOP_RULE = "b 7:* rwm"
"""Lets a container use loop devices."""
_SIZE = "512M"
# A container has no nodes for the devices of its host.
_NODES = """set -eu
[ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
make_nodes() {
  for device in /sys/block/loop*; do
    [ -e "$device/dev" ] || continue
    number=$(cat "$device/dev")
    [ -e "/dev/${device##*/}" ] || mknod "/dev/${device##*/}" b "${number%:*}" "${number#*:}"
  done
}
make_nodes
"""
# The kernel creates a device if all are in use; it has no node before the next attempt.
_OPEN = f"""truncate -s {_SIZE} /disk/content
for attempt in 1 2 3 4 5; do
  loop=$(losetup --find --show /disk/content) && break
  make_nodes
done
cat "/sys/block/${{loop##*/}}/dev"
"""
# Asks the kernel for the devices of this file: a number that was written down may be another's by now.
_DETACH = """[ -e /disk/content ] || exit 0
for loop in $(losetup --noheadings --output NAME --associated /disk/content); do losetup --detach "$loop"; done
"""


@dataclass
class Disks:
    """The disks of one rehearsal, by the id of their volume."""

    cluster: str
    labels: Mapping[str, str]
    loops: dict[str, str] = field(default_factory=dict)
    """Numbers of loop devices (`7:12`) by volume id."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def attach(self, volume: str, container: str, number: int) -> None:
        """Make a volume appear as /dev/nvme`number`n1 in a running container."""
        major, _, minor = self._open(volume).partition(":")
        disk = f"nvme{number}n1"
        run_in(
            container,
            f"rm -f /dev/{disk}\nmknod /dev/{disk} b {major} {minor}\nmkdir -p /sys/block/{disk}/device\n"
            f"echo {volume.replace('-', '')} >/sys/block/{disk}/device/serial\n"
            f"echo {MODEL} >/sys/block/{disk}/device/model\n"
            f"echo {major}:{minor} >/sys/block/{disk}/dev\n",
        )

    def list_volumes(self) -> list[str]:
        """Return the names of all Docker volumes with disks, also of an earlier rehearsal that was killed."""
        with engine_client.api_session("disks") as api:
            volumes = api.volumes(filters={"label": f"{names.CLUSTER}={self.cluster}"})["Volumes"] or []
        return [entry["Name"] for entry in volumes if entry["Name"].startswith(self._name("vol-"))]

    def detach(self, docker_volume: str) -> None:
        """Detach the loop devices of a disk; the file behind them goes with the Docker volume."""
        self._run(_DETACH, docker_volume)

    def _open(self, volume: str) -> str:
        with self._lock:
            if volume not in self.loops:
                name = self._name(volume)
                with engine_client.api_session(name) as api:
                    api.create_volume(name, labels=dict(self.labels))
                self.loops[volume] = self._run(_OPEN, name).splitlines()[-1]
            return self.loops[volume]

    def _run(self, script: str, docker_volume: str) -> str:
        """Run a script in a container that may manage loop devices, so that a rehearsal need not run as root."""
        code, output = run_short_container(
            _NODES + script,
            [Mount(target="/disk", source=docker_volume, type="volume")],
            self.labels,
            cap_add=["SYS_ADMIN", "MKNOD"],
            security_opt=list(node_container.UNCONFINED),
            device_cgroup_rules=[LOOP_RULE, "c 10:237 rwm"],
        )
        if code:
            raise ResourceError(
                "", f"no loop device for disk {docker_volume}: {output[-500:]}", "load the kernel module `loop`"
            )
        return output

    def _name(self, volume: str) -> str:
        return names.volume(self.cluster, volume)


def run_in(container: str, script: str) -> str:
    """Run a script as root in a container and return its output; raise ResourceError if it fails."""
    with engine_client.api_session(container) as api:
        started = api.exec_create(container, ["sh", "-ec", script])
        output = api.exec_start(started["Id"]).decode(errors="replace")
        code = api.exec_inspect(started["Id"])["ExitCode"]
    if code:
        raise ResourceError(
            "", f"a script in container {container} exited with {code}: {output[-500:]}", "rehearse again"
        )
    return output
