"""The first boot of a machine as a Pulumi resource: wait for SSH and cloud-init, then read what the machine is.

It is apart from the machine, so that a machine whose boot fails is in the state and teardown removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from bootstrap.progress import Event, emit
from bootstrap.transport.base import Transport, TransportError
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Node
from cluster.spec import ClusterSpec
from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed_or_unknown
from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.preflight.facts import FactsError
from infra.targets.rented.machine_check import find_errors, read_subject

# GPU machines check their GPUs before they start the operating system.
SSH_TIMEOUT_S = 900.0
CLOUD_INIT_TIMEOUT_S = 900.0
_CLOUD_INIT = """if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null || test $? = 2; fi"""
_FACTS = """getconf _NPROCESSORS_ONLN
awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo
"""


class BootProvider(ResourceProvider):
    """The provider of Boot; its inputs are BootArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        node = props["node"]
        emit(Event("machines", node, "boot", "start"))
        try:
            cpus, memory_mb = _read_machine(props)
        except Exception as failed:
            emit(Event("machines", node, "boot", "failed", str(failed)))
            raise
        emit(Event("machines", node, "boot", "changed"))
        return CreateResult(f"boot-{props['machine']}", props | {"cpus": cpus, "memory_mb": memory_mb})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed_or_unknown(olds, news, ("machine", "mounts"))
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=True)


@dataclass(frozen=True)
class BootArgs:
    """The inputs of a Boot."""

    section: str
    """The target's section of the spec, for errors."""
    node: str
    machine: pulumi.Input[str]
    """Its id, which no other machine has, not even one that replaces it."""
    address: pulumi.Input[str]
    """For SSH from here."""
    host_key: pulumi.Input[str]
    ssh_private_key: pulumi.Input[str]
    mounts: Sequence[str]
    spec: str
    """The cluster as JSON."""
    role: str
    group: str | None


class Boot(Resource, module="muster", name="MachineBoot"):
    """A machine that has booted: root can log in, and the shared filesystems are mounted."""

    cpus: pulumi.Output[int]
    memory_mb: pulumi.Output[int]

    def __init__(self, name: str, args: BootArgs, opts: pulumi.ResourceOptions) -> None:
        secret = pulumi.ResourceOptions(additional_secret_outputs=["ssh_private_key"])
        merged = pulumi.ResourceOptions.merge(opts, secret)
        super().__init__(BootProvider(), name, {**vars(args), "cpus": None, "memory_mb": None}, merged)


def _read_machine(props: Properties) -> tuple[int, int]:
    """Return CPUs and memory of a machine once it has set itself up."""
    node = Node(
        name=props["node"],
        role="compute",
        address=props["address"],
        host_key=props["host_key"],
        machine_id=props["machine"],
        cpus=0,
        memory_mb=0,
    )
    try:
        transport = SshTransport.connect(node, props["ssh_private_key"], deadline_s=SSH_TIMEOUT_S)
        try:
            return _ask(transport, props)
        finally:
            transport.close()
    except TransportError as error:
        section = props["section"]
        fix = error.fix or f"check that `{section}.ssh_from` has the public address of this machine, then run it again"
        raise ResourceError(section, f"{props['node']}: {error.line}", fix) from None


def _ask(transport: Transport, props: Properties) -> tuple[int, int]:
    node = props["node"]
    if transport.run(_CLOUD_INIT, timeout=CLOUD_INIT_TIMEOUT_S).code != 0:
        what = f"{node}: cloud-init has failed, so the machine is not as it should be"
        raise ResourceError(props["section"], what, f"read /var/log/cloud-init-output.log on {props['address']}")
    for mount in props["mounts"]:
        if transport.run(f"mountpoint -q {mount}").code != 0:
            what = f"{node}: the shared filesystem is not mounted at {mount}"
            raise ResourceError(props["section"], what, f"read /var/log/cloud-init-output.log on {props['address']}")
    _check(transport, props)
    cpus, memory_mb = transport.run(_FACTS).out.split()
    return int(cpus), int(memory_mb)


def _check(transport: Transport, props: Properties) -> None:
    """Raise ResourceError if bootstrap cannot set up the machine, before it tries."""
    node, spec = props["node"], ClusterSpec.model_validate_json(props["spec"])
    try:
        subject = read_subject(transport, spec, Assignment(node, node, props["role"], props.get("group")))
    except FactsError as error:
        raise ResourceError(props["section"], f"{node}: its facts cannot be read: {error}", "run it again") from None
    if errors := find_errors(subject):
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ResourceError(f"{props['section']}.image", f"{node}: {errors[0].message}{more}", errors[0].fix)
