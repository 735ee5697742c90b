"""The instances of a rehearsal: each machine that EC2 starts becomes a container, in the order and time of AWS."""

from __future__ import annotations

import os
import threading
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docker.errors import NotFound

from cluster import names
from cluster.catalog.instances import InstanceType
from infra.resources.error import ResourceError
from infra.targets.aws.launcher.node_names import read_node_name
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.aws.rehearse.hardware import list_hardware_files
from infra.targets.aws.rehearse.machine import MachineArgs, Site, container_name, start_machine
from infra.targets.aws.rehearse.metadata import Metadata
from infra.targets.aws.rehearse.timeline import Timeline
from infra.targets.local import docker_engine as engine_client

# Codes of EC2's instance states.
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
_MANY_GPUS = 8
_MEMORY_MB = {"controller": 2048}
_DEFAULT_MEMORY_MB = 1536
# nvme0n1 is the root disk.
_FIRST_DISK = 1


@dataclass
class Instance:
    """An instance of moto with what the rehearsal adds to it."""

    raw: Any
    role: str
    """Name of its IAM role."""
    is_booted: threading.Event = field(default_factory=threading.Event)
    """Set when its container runs, or when it never will."""
    is_registered: bool = False
    """Whether Systems Manager reaches it."""
    is_profile_known: bool = False
    """Whether the metadata service has credentials of its role."""
    disks: int = 0

    @property
    def id(self) -> str:
        return str(self.raw.id)

    @property
    def tags(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.raw.get_tags()}

    @property
    def name(self) -> str:
        """Node name, or the instance id before it has one."""
        return read_node_name(self.tags, self.raw.ami_launch_index) or self.id

    @property
    def access_key(self) -> str:
        """Key id of the credentials of its role, by which its calls are recognized."""
        return f"ASIA{self.id.removeprefix('i-').upper()}"

    @property
    def is_ending(self) -> bool:
        return self.raw._state.name in ("shutting-down", "terminated")

    def enter(self, state: str) -> None:
        self.raw._state.name, self.raw._state.code = state, _CODES[state]


@dataclass
class Instances:
    """All instances of a rehearsal, by id."""

    site: Site
    clock: Clock
    timeline: Timeline
    types: Mapping[str, InstanceType]
    """Instance types of the cluster by name, with the sizes that they have in the rehearsal."""
    efa_groups: frozenset[str]
    list_storage: Callable[[], list[str]]
    """Returns the ids of the filesystems that exist."""
    disks: Disks
    by_id: dict[str, Instance] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Errors of this machine rather than of AWS."""

    def launch(self, raw: Any, role: str) -> None:
        """Let an instance that moto has created boot in its own time."""
        instance = Instance(raw, role)
        self.by_id[instance.id] = instance
        instance.enter("pending")
        self._begin(self._boot, instance)

    def terminate(self, instance_id: str) -> None:
        """Shut an instance down; it disappears after a while."""
        instance = self.by_id[instance_id]
        instance.enter("shutting-down")
        self.timeline.record(instance.name, "shutting down")
        self._begin(self._end, instance, "terminated")

    def stop(self, instance_id: str) -> None:
        """Stop an instance; its container stays."""
        instance = self.by_id[instance_id]
        instance.enter("stopping")
        self.timeline.record(instance.name, "stopping")
        self._begin(self._end, instance, "stopped")

    def attach(self, volume: str, instance_id: str) -> None:
        """Make a volume appear on an instance once both exist."""
        self._begin(self._attach, self.by_id[instance_id], volume)

    def find_metadata(self, address: str) -> Metadata | None:
        """Return the metadata of the running instance with this address."""
        instance = next((i for i in self.by_id.values() if i.raw.private_ip == address and not i.is_ending), None)
        if instance is None:
            return None
        return Metadata(
            instance=instance.id,
            address=address,
            launch_index=int(instance.raw.ami_launch_index),
            tags=instance.tags,
            user_data=b64decode(str(instance.raw.user_data)).decode(),
            role=instance.role,
            access_key=instance.access_key if instance.is_profile_known else "",
        )

    def find_caller(self, access_key: str) -> Instance | None:
        """Return the instance whose credentials have this key id."""
        return next((instance for instance in self.by_id.values() if instance.access_key == access_key), None)

    def container(self, instance_id: str) -> str:
        return container_name(self.site, instance_id)

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=self._report_errors, args=(work, *arguments), daemon=True).start()

    def _report_errors(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except (ResourceError, OSError) as error:
            self.failures.append(str(error))
            self.timeline.record(arguments[0].name, f"failed on this machine: {error}")

    def _boot(self, instance: Instance) -> None:
        self.timeline.record(instance.name, "pending")
        self.clock.wait("instance pending", instance.id)
        if instance.is_ending:
            return
        instance.enter("running")
        self.timeline.record(instance.name, "boots")
        instance_type = self.types[instance.raw.instance_type]
        large = instance_type.gpus.count >= _MANY_GPUS
        self.clock.wait("large operating system boot" if large else "operating system boot", instance.id)
        if instance.is_ending:
            return
        start_machine(self.site, self._describe(instance, instance_type))
        instance.is_booted.set()
        self.timeline.record(instance.name, "runs user data")
        self.clock.wait("instance profile", instance.id)
        instance.is_profile_known = True
        self.clock.wait("agent registration", instance.id)
        instance.is_registered = not instance.is_ending

    def _describe(self, instance: Instance, instance_type: InstanceType) -> MachineArgs:
        efa = instance.tags.get(names.GROUP, "") in self.efa_groups
        return MachineArgs(
            instance=instance.id,
            address=str(instance.raw.private_ip),
            cpus=min(instance_type.vcpus, os.cpu_count() or 1),
            memory_mb=_MEMORY_MB.get(instance.tags.get(names.ROLE, ""), _DEFAULT_MEMORY_MB),
            gpus=instance_type.gpus.count,
            storage=self.list_storage(),
            hardware=list_hardware_files(instance_type, efa=efa),
        )

    def _end(self, instance: Instance, state: str) -> None:
        instance.is_registered = False
        self.clock.wait("instance shutting down", instance.id)
        with engine_client.api_session(instance.id) as api:
            try:
                if state == "terminated":
                    api.remove_container(self.container(instance.id), force=True, v=True)
                else:
                    api.kill(self.container(instance.id))
            except NotFound:
                pass  # It ended before it booted.
        instance.enter(state)
        instance.is_booted.set()
        self.timeline.record(instance.name, state)

    def _attach(self, instance: Instance, volume: str) -> None:
        instance.is_booted.wait()
        if instance.is_ending:
            return
        self.clock.wait("volume attachment", volume)
        self.disks.attach(volume, self.container(instance.id), _FIRST_DISK + instance.disks)
        instance.disks += 1
        self.timeline.record(volume, f"attached to {instance.name}")
