"""The instances of a rehearsal: each machine that EC2 starts becomes a container, in the order and time of AWS."""

from __future__ import annotations

import os
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cluster import names
from cluster.catalog.instances import InstanceType
from infra.engine.stop import FAILED, Stop
from infra.resources.error import ResourceError
from infra.targets.aws.rehearse.cleanup import remove_container, stop_container
from infra.targets.aws.rehearse.delays import TABLE, Clock
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.aws.rehearse.hardware import list_hardware_files
from infra.targets.aws.rehearse.instance import SERVER_ERROR, TAKEN_BACK, Instance
from infra.targets.aws.rehearse.machine import (
    MachineArgs,
    Site,
    container_name,
    read_installation_s,
    read_last_lines,
    start_machine,
)
from infra.targets.aws.rehearse.metadata import Metadata
from infra.targets.aws.rehearse.rehearsed_stack import MEMORY_MB
from infra.targets.aws.rehearse.restarts import is_powered_off, start_container, wait_for_restart
from infra.targets.aws.rehearse.timeline import Timeline
from infra.targets.local import docker_engine as engine_client

_MANY_GPUS = 8
# nvme0n1 is the root disk.
_FIRST_DISK = 1
_CLOSE_TIMEOUT_S, _POLL_S = 120.0, 0.2
SPOT_NOTICE_S = TABLE["spot notice"].least_s


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
    listing_s: float = 0
    """Seconds by which instances are listed later than the table says; they are not shortened."""
    node_image: str = names.IMAGE
    """Docker image of machines that start from AWS's images."""
    slurm_packages: str = ""
    """Docker volume with the packages of Slurm's releases; empty if machines need only that of their image."""
    driver_images: frozenset[str] = frozenset()
    """Ids of AWS's images that have the GPU driver."""
    images: dict[str, str] = field(default_factory=dict)
    """Docker images of the images that were made of instances, by their id."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set when the rehearsal ends: from then on nothing is started."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._launches: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def launch(self, raw: Any, role: str) -> None:
        """Let an instance that moto has created boot in its own time."""
        instance = Instance(raw, role)
        name = "unnamed" if instance.name == instance.id else instance.name
        with self._lock:
            self._launches[name] += 1
            instance.draw_key = f"{name}#{self._launches[name]}"
        listing_s = self.clock.draw("instance listing", instance.draw_key) / self.clock.speed + self.listing_s
        instance.listed_at = time.monotonic() + listing_s
        self.by_id[instance.id] = instance
        instance.enter("pending")
        self._begin(self._boot, instance)

    def terminate(self, instance_id: str) -> None:
        """Shut an instance down; it disappears after a while."""
        instance = self.by_id[instance_id]
        instance.enter("shutting-down")
        self.timeline.record(instance.name, "shutting down")
        self._begin(self._end, instance, "terminated")

    def lose(self, instance_id: str) -> None:
        """End an instance as a failure of its hardware does: its processes are gone at once, and nobody is told."""
        instance = self.by_id[instance_id]
        instance.is_registered = False
        self.timeline.record(instance.name, "lost")
        remove_container(self.container(instance_id))
        instance.end(SERVER_ERROR, "hardware failure")

    def wait_for_ends(self, timeout_s: float) -> None:
        """Wait until no instance is shutting down."""
        until = time.monotonic() + timeout_s
        while any(i.raw._state.name == "shutting-down" for i in self.by_id.values()) and time.monotonic() < until:
            time.sleep(0.1)

    def take_back(self, instance_id: str) -> None:
        """Announce the end of a spot instance, and end it after the time of the notice, which is not shortened."""
        instance = self.by_id[instance_id]
        instance.taken_at = datetime.now(UTC) + timedelta(seconds=SPOT_NOTICE_S)
        self.timeline.record(instance.name, "spot notice")
        self._begin(self._take, instance)

    def find(self, name: str) -> Instance | None:
        """Return the instance of a node that is not ending."""
        return next((i for i in self.by_id.values() if i.name == name and not i.is_ending), None)

    def require(self, name: str) -> Instance:
        """Return the instance of a node that is not ending; raise Stop if there is none."""
        if (instance := self.find(name)) is None:
            raise Stop(f"{name} has no machine", code=FAILED)
        return instance

    def wait_for_user_data(self, name: str, timeout_s: float) -> Instance:
        """Wait until a node's instance runs its user data, and return it; raise Stop if that does not happen."""
        until = time.monotonic() + timeout_s
        while (instance := self.find(name)) is None or not instance.is_booted.is_set():
            if time.monotonic() > until:
                raise Stop(f"{name} does not run its user data after {timeout_s:.0f} s", code=FAILED)
            time.sleep(_POLL_S)
        return instance

    def stop(self, instance_id: str) -> None:
        """Stop an instance; its container stays."""
        instance = self.by_id[instance_id]
        instance.enter("stopping")
        self.timeline.record(instance.name, "stopping")
        self._begin(self._end, instance, "stopped")

    def create_image(self, image: Any, instance_id: str) -> None:
        """Make the container of a stopped instance the Docker image of a new image of moto."""
        image.state = "pending"
        self._begin(self._commit, self.by_id[instance_id], image)

    def attach(self, volume: str, instance_id: str) -> None:
        """Make a volume appear on an instance once both exist."""
        instance = self.by_id[instance_id]
        with self._lock:
            number = _FIRST_DISK + instance.disks
            instance.disks += 1
        self._begin(self._attach, instance, volume, number)

    def report(self, name: str, state: str) -> None:
        """Record that the running instance of a node has reported the state of its set-up."""
        instance = next((i for i in self.by_id.values() if i.name == name and not i.is_ending), None)
        if instance and state == "ready" and instance.ready_at is None:
            instance.ready_at = time.monotonic()
        if instance and state in ("ready", "failed"):
            self.timeline.record(name, state)
        if instance and state == "ready":
            self._begin(self._note_installations, instance)

    def close(self) -> None:
        """Start nothing any more, and wait until everything that was under way has ended."""
        with self._lock:
            self.closing.set()
            threads = list(self._threads)
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

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
            is_spot=instance.is_spot,
            taken_at=instance.taken_at,
            on_user_data=instance.read_user_data,
        )

    def find_caller(self, access_key: str) -> Instance | None:
        """Return the instance whose credentials have this key id."""
        return next((instance for instance in self.by_id.values() if instance.access_key == access_key), None)

    def hide_unlisted(self, reservations: list[Any]) -> list[Any]:
        """Remove the instances that EC2 does not list yet from copies of reservations."""
        for reservation in reservations:
            reservation.instances = [raw for raw in reservation.instances if self.is_listed(raw.id)]
        return [reservation for reservation in reservations if reservation.instances]

    def is_listed(self, instance_id: str) -> bool:
        """Return whether EC2 lists an instance; it lists a new one only after a while."""
        return instance_id not in self.by_id or time.monotonic() >= self.by_id[instance_id].listed_at

    def has_address(self, address: str) -> bool:
        """Return whether an instance has an address, also while it shuts down."""
        return any(i.raw.private_ip == address and i.raw._state.name != "terminated" for i in self.by_id.values())

    def container(self, instance_id: str) -> str:
        return container_name(self.site, instance_id)

    def _begin(self, work: Callable[..., None], instance: Instance, *arguments: Any) -> None:
        thread = threading.Thread(target=self._report_errors, args=(work, instance, *arguments), daemon=True)
        with self._lock:
            if self.closing.is_set():
                return
            self._threads.append(thread)
            thread.start()

    def _report_errors(self, work: Callable[..., None], instance: Instance, *arguments: Any) -> None:
        try:
            work(instance, *arguments)
        except Exception as error:  # whatever it is, commands would wait an hour for the instance
            if self.closing.is_set():
                return  # The cleanup removes what it needed.
            text = str(error) if isinstance(error, ResourceError) else f"{type(error).__name__}: {error}"
            with suppress(ResourceError):  # The engine may be what failed.
                if lines := read_last_lines(self.container(instance.id)):
                    text = f"{text} The machine printed last: {' / '.join(lines)}"
            self.failures.append(f"{instance.name}: {text}")
            self.timeline.record(instance.name, f"failed on this machine: {text}")
            instance.fail(text)
            with suppress(ResourceError):  # The cleanup tries again.
                remove_container(self.container(instance.id))

    def _boot(self, instance: Instance) -> None:
        self.timeline.record(instance.name, "pending")
        instance.pending_s = self.clock.wait("instance pending", instance.draw_key)
        if self._is_over(instance):
            return
        instance.enter("running")
        self.timeline.record(instance.name, "boots")
        instance_type = self.types[instance.raw.instance_type]
        instance.boot_s += self.clock.wait(_name_boot(instance_type), instance.draw_key)
        if self._is_over(instance):
            return
        instance.started_at = time.monotonic()
        try:
            start_machine(self.site, self._describe(instance, instance_type))
        finally:
            # It may have been terminated meanwhile, before there was a container to remove.
            if self._is_over(instance):
                remove_container(self.container(instance.id))
        if self._is_over(instance):
            return
        instance.is_booted.set()
        self.timeline.record(instance.name, "runs user data")
        self._begin(self._watch_for_restarts, instance)
        self.clock.wait("instance profile", instance.draw_key)
        instance.is_profile_known = True
        self.timeline.record(f"{instance.name} credentials", "available")
        self.clock.wait("agent registration", instance.draw_key)
        instance.is_registered = not self._is_over(instance)
        self.timeline.record(f"{instance.name} agent", "registered")

    def _note_installations(self, instance: Instance) -> None:
        """Note how much of a machine's set-up was a shortened installation; it may have ended meanwhile."""
        with suppress(ResourceError):
            self.timeline.shorten_set_up(instance.name, read_installation_s(self.container(instance.id)))

    def _watch_for_restarts(self, instance: Instance) -> None:
        """Boot an instance again each time its operating system restarts it; end it when that shuts it down."""
        number = 0
        while wait_for_restart(self.container(instance.id), lambda: not self._is_running(instance)):
            if is_powered_off(self.container(instance.id)):
                instance.power_off()
                return
            number += 1
            instance.is_booted.clear()
            instance.is_registered = False
            self.timeline.record(instance.name, "restarts")
            boot = _name_boot(self.types[instance.raw.instance_type])
            instance.boot_s += self.clock.wait(boot, f"{instance.draw_key} restart {number}")
            if not self._is_running(instance):
                return
            start_container(self.container(instance.id))
            instance.is_booted.set()
            self.timeline.record(instance.name, "continues")
            self.clock.wait("agent registration", f"{instance.draw_key} restart {number}")
            instance.is_registered = self._is_running(instance)

    def _is_running(self, instance: Instance) -> bool:
        return instance.raw._state.name == "running" and not self.closing.is_set()

    def _take(self, instance: Instance) -> None:
        self.clock.sleep(SPOT_NOTICE_S)
        if not self._is_over(instance):
            instance.end(TAKEN_BACK, "capacity is needed elsewhere")

    def _is_over(self, instance: Instance) -> bool:
        return instance.is_ending or self.closing.is_set()

    def _describe(self, instance: Instance, instance_type: InstanceType) -> MachineArgs:
        efa = instance.tags.get(names.GROUP, "") in self.efa_groups
        return MachineArgs(
            instance=instance.id,
            address=str(instance.raw.private_ip),
            cpus=min(instance_type.vcpus, os.cpu_count() or 1),
            memory_mb=min(instance_type.memory_mb, MEMORY_MB),
            gpus=instance_type.gpus.count,
            has_driver=instance.raw.image_id in self.driver_images,
            image=self.images.get(instance.raw.image_id, self.node_image),
            storage=self.list_storage(),
            hardware=list_hardware_files(instance_type, efa=efa),
            slurm_packages=self.slurm_packages,
        )

    def _end(self, instance: Instance, state: str) -> None:
        instance.is_registered = False
        self.clock.wait("instance shutting down", instance.draw_key)
        if self.closing.is_set():
            return
        end_container = remove_container if state == "terminated" else stop_container
        end_container(self.container(instance.id))
        instance.enter(state)
        instance.is_booted.set()
        if state == "terminated":
            instance.release_addresses()
        self.timeline.record(instance.name, state)

    def _commit(self, instance: Instance, image: Any) -> None:
        self.timeline.record(image.id, "pending")
        self.clock.wait("image creation", instance.draw_key)
        repository = names.network(self.site.cluster)
        with engine_client.api_session(instance.id) as api:
            # Its labels, by which the cleanup finds the image, are those of the container.
            api.commit(self.container(instance.id), repository=repository, tag=image.id)
        self.images[image.id] = f"{repository}:{image.id}"
        image.state = "available"
        self.timeline.record(image.id, "available")

    def _wait_for_boot(self, instance: Instance) -> None:
        while not (self._is_over(instance) or instance.is_booted.wait(_POLL_S)):
            pass

    def _attach(self, instance: Instance, volume: str, number: int) -> None:
        self._wait_for_boot(instance)
        self.clock.wait("volume attachment", f"{instance.draw_key} disk {number}")
        # It may be restarting.
        self._wait_for_boot(instance)
        if self._is_over(instance):
            return
        self.disks.attach(volume, self.container(instance.id), number)
        self.timeline.record(volume, f"attached to {instance.name}")


def _name_boot(instance_type: InstanceType) -> str:
    """Return the delay of a type's boot."""
    return "large operating system boot" if instance_type.gpus.count >= _MANY_GPUS else "operating system boot"
