"""What connects moto to the instances of a rehearsal: launches, ends, volumes, and commands of Systems Manager."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from moto.core.exceptions import JsonRESTError
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.models.amis import AmiBackend
from moto.ec2.models.elastic_block_store import EBSBackend
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.models.subnets import Subnet
from moto.iam.models import iam_backends
from moto.ssm.models import SimpleSystemManagerBackend

from infra.targets.aws.node import parameters
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.local import docker_engine as engine_client

_MAX_OUTPUT_CHARACTERS = 24_000
_TIMED_OUT = 124
_SCRIPT = "_script.sh"
_NODES = parameters.nodes("").rpartition("/")[2]


@contextmanager
def connect_instances(instances: Instances) -> Iterator[None]:
    """Replace what moto does with machines by what the rehearsal does."""
    commands = Commands(instances)
    run_instances, terminate, stop = InstanceBackend.run_instances, Instance.terminate, Instance.stop
    attach, send = EBSBackend.attach_volume, SimpleSystemManagerBackend.send_command
    get, put = SimpleSystemManagerBackend.get_command_invocation, SimpleSystemManagerBackend.put_parameter

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        role = _find_role(self, kwargs)
        reservation = run_instances(self, *args, **kwargs)
        template = _read_template(self, kwargs)
        for instance in reservation.instances:
            # moto ignores what the template says about it.
            if behavior := template.get("InstanceInitiatedShutdownBehavior"):
                instance.instance_initiated_shutdown_behavior = behavior
            instances.launch(instance, role)
        return reservation

    def end(self: Any) -> Any:
        if self.id in instances.by_id and instances.by_id[self.id].is_ending:
            return self._state
        previous = terminate(self)
        if self.id in instances.by_id:
            instances.terminate(self.id)
        return previous

    def halt(self: Any) -> Any:
        previous = stop(self)
        if self.id in instances.by_id:
            instances.stop(self.id)
        return previous

    def attach_volume(self: Any, volume_id: str, instance_id: str, *args: Any, **kwargs: Any) -> Any:
        attachment = attach(self, volume_id, instance_id, *args, **kwargs)
        if instance_id in instances.by_id:
            instances.attach(volume_id, instance_id)
        return attachment

    def send_command(self: Any, **kwargs: Any) -> Any:
        # moto adds every instance of the region to the list if the command has no targets besides it.
        instance_ids = list(kwargs["instance_ids"])
        commands.check(instance_ids)
        command = send(self, **kwargs)
        commands.start(command, instance_ids)
        return command

    def get_command_invocation(self: Any, command_id: str, instance_id: str, plugin_name: str | None) -> Any:
        answer = get(self, command_id, instance_id, plugin_name)
        return {**answer, **commands.results.get((command_id, instance_id), {})}

    def put_parameter(self: Any, name: str, description: str, value: str, *args: Any, **kwargs: Any) -> Any:
        stored = put(self, name, description, value, *args, **kwargs)
        if (state := _read_report(name, value)) is not None:
            instances.report(name.rpartition("/")[2], state)
        return stored

    SimpleSystemManagerBackend.put_parameter = put_parameter
    InstanceBackend.run_instances, Instance.terminate, Instance.stop = launch, end, halt
    EBSBackend.attach_volume = attach_volume
    SimpleSystemManagerBackend.send_command = send_command
    SimpleSystemManagerBackend.get_command_invocation = get_command_invocation
    try:
        with list_late(instances), _make_images(instances), _hold_addresses(instances):
            yield
    finally:
        InstanceBackend.run_instances, Instance.terminate, Instance.stop = run_instances, terminate, stop
        EBSBackend.attach_volume, SimpleSystemManagerBackend.send_command = attach, send
        SimpleSystemManagerBackend.get_command_invocation = get
        SimpleSystemManagerBackend.put_parameter = put


class Listing(Protocol):
    """What EC2 lists of the instances that exist."""

    def hide_unlisted(self, reservations: list[Any]) -> list[Any]: ...

    def is_listed(self, instance_id: str) -> bool: ...


@contextmanager
def list_late(instances: Listing) -> Iterator[None]:
    """Let moto list new instances only after a while, as EC2 does."""
    describe, describe_by_id = InstanceBackend.describe_instances, InstanceBackend.get_reservations_by_instance_ids

    def describe_instances(self: Any, *args: Any, **kwargs: Any) -> Any:
        return instances.hide_unlisted(describe(self, *args, **kwargs))

    def describe_instances_by_id(self: Any, instance_ids: list[str], *args: Any, **kwargs: Any) -> Any:
        if unlisted := [id_ for id_ in instance_ids if not instances.is_listed(id_)]:
            raise InvalidInstanceIdError(unlisted)
        return describe_by_id(self, instance_ids, *args, **kwargs)

    InstanceBackend.describe_instances = describe_instances
    InstanceBackend.get_reservations_by_instance_ids = describe_instances_by_id
    try:
        yield
    finally:
        InstanceBackend.describe_instances = describe
        InstanceBackend.get_reservations_by_instance_ids = describe_by_id


@contextmanager
def _make_images(instances: Instances) -> Iterator[None]:
    """Make images of the containers of instances."""
    create = AmiBackend.create_image

    def create_image(self: Any, instance_id: str, *args: Any, **kwargs: Any) -> Any:
        image = create(self, instance_id, *args, **kwargs)
        if instance_id in instances.by_id:
            instances.create_image(image, instance_id)
        return image

    AmiBackend.create_image = create_image
    try:
        yield
    finally:
        AmiBackend.create_image = create


@contextmanager
def _hold_addresses(instances: Instances) -> Iterator[None]:
    """Let an instance keep its address until it has ended, as EC2 does; moto frees it when the shut-down begins."""
    free = Subnet.del_subnet_ip

    def free_unused(self: Any, address: str) -> None:
        if not instances.has_address(address):
            free(self, address)

    Subnet.del_subnet_ip = free_unused
    try:
        yield
    finally:
        Subnet.del_subnet_ip = free


class Commands:
    """Commands of Systems Manager: each runs in the instance's container."""

    def __init__(self, instances: Instances) -> None:
        self.instances = instances
        self.results: dict[tuple[str, str], dict[str, Any]] = {}

    def check(self, instance_ids: list[str]) -> None:
        """Refuse a command for an instance whose agent has not registered, as Systems Manager does."""
        registered = {id_ for id_, instance in self.instances.by_id.items() if instance.is_registered}
        if not registered.issuperset(instance_ids):
            raise JsonRESTError("InvalidInstanceId", "Instances not in a valid state for account")

    def start(self, command: Any, instance_ids: list[str]) -> None:
        for id_ in instance_ids:
            self.results[command.command_id, id_] = {"Status": "InProgress", "StatusDetails": "InProgress"}
            threading.Thread(target=self._run, args=(command, id_), daemon=True).start()

    def _run(self, command: Any, instance_id: str) -> None:
        try:
            result = self._execute(command, instance_id)
        except Exception as error:  # whatever it is, the sender would wait until its timeout
            text = f"failed on this machine: {type(error).__name__}: {error}"
            if not self.instances.closing.is_set() and not self.instances.by_id[instance_id].is_ending:
                self.instances.failures.append(f"Run Command on {self.instances.by_id[instance_id].name}: {text}")
            result = {
                "Status": "Failed",
                "StatusDetails": "Failed",
                "ResponseCode": -1,
                "StandardOutputContent": "",
                "StandardErrorContent": text,
            }
        self.results[command.command_id, instance_id] = result

    def _execute(self, command: Any, instance_id: str) -> dict[str, Any]:
        timeout_s = int((command.parameters.get("executionTimeout") or ["3600"])[0])
        folder = f"/var/lib/amazon/ssm/{command.command_id}"
        container, api = self.instances.container(instance_id), engine_client.connect()
        api.put_archive(container, "/", _archive(f"{folder}/{_SCRIPT}", "\n".join(command.parameters["commands"])))
        started = api.exec_create(container, ["timeout", str(timeout_s), "sh", f"{folder}/{_SCRIPT}"])
        out, err = api.exec_start(started["Id"], demux=True)
        code = api.exec_inspect(started["Id"])["ExitCode"]
        status = "Success" if code == 0 else "TimedOut" if code == _TIMED_OUT else "Failed"
        return {
            "Status": status,
            "StatusDetails": status,
            "ResponseCode": code,
            "StandardOutputContent": (out or b"").decode(errors="replace")[:_MAX_OUTPUT_CHARACTERS],
            "StandardErrorContent": (err or b"").decode(errors="replace")[:_MAX_OUTPUT_CHARACTERS],
        }


def _read_report(parameter: str, value: str) -> str | None:
    """Return the state in a node's report; None if the parameter is another one."""
    if f"/{_NODES}/" not in parameter:
        return None
    return str(json.loads(value)["state"])


def _find_role(backend: Any, launch: dict[str, Any]) -> str:
    """Return the role of the instance profile that a launch or its template names."""
    name, arn = launch.get("iam_instance_profile_name"), launch.get("iam_instance_profile_arn")
    if not name and not arn:
        profile = _read_template(backend, launch).get("IamInstanceProfile") or {}
        name, arn = profile.get("Name"), profile.get("Arn")
    iam = iam_backends[backend.account_id]["aws"]
    profiles = [profile for profile in iam.instance_profiles.values() if name == profile.name or arn == profile.arn]
    return next((str(role.name) for profile in profiles for role in profile.roles), "")


def _read_template(backend: Any, launch: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the launch template of a launch; empty if it has none."""
    named = launch.get("launch_template")
    return dict(backend._get_template_from_args(named).data) if named else {}


def _archive(path: str, text: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(path.lstrip("/"))
        data = text.encode()
        entry.size, entry.mode = len(data), 0o700
        tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
