"""EBS volumes of a rehearsal: files behind loop devices that look like NVMe disks and outlive their machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.types import Mount

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container

MODEL = "Amazon Elastic Block Store"
LOOP_RULE = "b 7:* rwm"
"""Lets a container use loop devices."""
_SIZE = "512M"
_LOOPS = """mknod /dev/loop-control c 10 237 2>/dev/null || true
for number in $(seq 0 63); do mknod /dev/loop$number b 7 $number 2>/dev/null || true; done
"""


@dataclass
class Disks:
    """The disks of one rehearsal, by the id of their volume."""

    cluster: str
    labels: Mapping[str, str]
    loops: dict[str, str] = field(default_factory=dict)
    """Loop devices by volume id."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def attach(self, volume: str, container: str, number: int) -> None:
        """Make a volume appear as /dev/nvme`number`n1 in a running container."""
        loop = self._open(volume)
        disk = f"nvme{number}n1"
        minor = loop.removeprefix("/dev/loop")
        run_in(
            container,
            f"rm -f /dev/{disk}\nmknod /dev/{disk} b 7 {minor}\nmkdir -p /sys/block/{disk}/device\n"
            f"echo {volume.replace('-', '')} >/sys/block/{disk}/device/serial\n"
            f"echo {MODEL} >/sys/block/{disk}/device/model\n",
        )

    def remove(self) -> None:
        """Detach all loop devices, also those of an earlier rehearsal that was killed.

        The files behind them go with the rehearsal's Docker volumes.
        """
        with engine_client.api_session("disks") as api:
            volumes = api.volumes(filters={"label": f"{names.CLUSTER}={self.cluster}"})["Volumes"] or []
        for name in (volume["Name"] for volume in volumes if volume["Name"].startswith(self._name("vol-"))):
            script = "if [ -e /disk/loop ]; then losetup --detach $(cat /disk/loop); fi"
            _run_with_loops(script, [Mount(target="/disk", source=name, type="volume")])
        self.loops.clear()

    def _open(self, volume: str) -> str:
        with self._lock:
            if volume not in self.loops:
                name = self._name(volume)
                engine_client.connect().create_volume(name, labels=dict(self.labels))
                script = f"truncate -s {_SIZE} /disk/content\nlosetup --find --show /disk/content | tee /disk/loop"
                self.loops[volume] = _run_with_loops(script, [Mount(target="/disk", source=name, type="volume")])
            return self.loops[volume]

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


def _run_with_loops(script: str, mounts: list[Mount]) -> str:
    """Run a script in a container that may manage loop devices, so that a rehearsal need not run as root."""
    api = engine_client.connect()
    host: Any = api.create_host_config(
        cap_add=["SYS_ADMIN", "MKNOD"],
        security_opt=list(node_container.UNCONFINED),
        device_cgroup_rules=[LOOP_RULE, "c 10:237 rwm"],
        mounts=mounts,
        network_mode="none",
    )
    command = ["sh", "-c", f"set -e\n{_LOOPS}{script}"]
    container = api.create_container(names.IMAGE, command, entrypoint="", host_config=host)["Id"]
    try:
        api.start(container)
        code, output = api.wait(container)["StatusCode"], api.logs(container).decode().strip()
        if code:
            raise ResourceError("", f"no loop device for a disk: {output[-500:]}", "load the kernel module `loop`")
    finally:
        api.remove_container(container, force=True, v=True)
    return str(output)
