"""A node of the local target: a container that runs systemd and sshd, with a host key generated and pinned here."""

from __future__ import annotations

import io
import socket
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import docker
import pulumi
from docker.errors import APIError, ImageNotFound, NotFound
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.progress import Event, State, emit
from cluster import names
from infra.resources import ssh_key
from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import docker_volume, node_container
from infra.targets.local.build.node_container import usable_hashes
from infra.targets.local.strays import remove_container

_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_SSH_PORT = 22
_SSH_TIMEOUT_S = 60.0
_POLL_S = 0.05
_POLLS_PER_CONTAINER_CHECK = 20
_LOG_LINES = 5
# The systemd of a node uses about five inotify instances; kernels allow 128 per user by default.
_INOTIFY_FIX = "`sysctl -w fs.inotify.max_user_instances=4096`, then run it again"


class DockerNodeProvider(ResourceProvider):
    """The provider of DockerNode; its inputs are NodeArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(names.container(props["cluster"], props["node"]), _ensure_running(props, "create"))

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.api_session(f"node {props['node']}") as api:
            container = _inspect(api, id_)
            if container is None or not _is_usable(container, props):
                return ReadResult("", {})
            return ReadResult(id_, props | {"running": _is_running(container)} | _identity(api, container, props))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, node_container.REPLACING)
        updates = changed(olds, news, ("ssh_public_key", "image")) or not olds.get("running", True)
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_ensure_running(news, "start"))

    def delete(self, id_: str, props: Properties) -> None:
        node, cluster = props["node"], props["cluster"]
        emit(Event("machines", node, "remove", "start"))
        with engine_client.api_session(f"node {node}") as api:
            container = _inspect(api, id_)
            if container is None or not engine_client.is_foreign(container["Config"]["Labels"]):
                remove_container(api, id_)
                cgroup_tree.remove_node(cluster, node)
        emit(Event("machines", node, "remove", "changed"))


@dataclass(frozen=True)
class NodeArgs:
    """The inputs of a DockerNode."""

    node: str
    cluster: str
    stack: str
    role: str
    group: str | None
    """Node group of a compute node; None for other roles."""
    image: str
    cpus: int
    memory_mb: int
    devices: Sequence[str]
    """Paths of the simulated GPU devices in the container."""
    ssh_port: int | None
    """Port of this machine that leads to the node's sshd; None for no such port."""
    network: str
    network_id: pulumi.Input[str]
    address: pulumi.Input[str]
    mounts: Sequence[Mapping[str, str | bool]]
    state_mounts: Sequence[Mapping[str, str | bool]]
    """Mounts of the controller's state. A container without them is not replaced: its state would be lost."""
    ssh_public_key: pulumi.Input[str]
    """Key with which root of the node can be reached."""
    tags: Mapping[str, str]


class DockerNode(Resource, module="muster", name="DockerNode"):
    """The container of a node, with its sshd listening."""

    address: pulumi.Output[str]
    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]
    """Docker's id of the container."""

    def __init__(self, args: NodeArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = {"host_key": None, "machine_id": None, "running": None, "created": None}
        super().__init__(DockerNodeProvider(), args.node, {**vars(args), **outputs}, opts)


def _ensure_running(props: Properties, step: str) -> Properties:
    """Adopt or create the node's container, wait for its sshd, and return the outputs of the resource."""
    node = props["node"]
    emit(Event("machines", node, step, "start"))
    try:
        with engine_client.api_session(f"node {node}") as api:
            container = _adopt(api, props)
            state: State = "changed" if container is None else "ok"
            container = container or _create_handling_conflict(api, props)
            _wait_for_ssh(api, container["Id"], props)
            outputs = props | {"running": True} | _identity(api, container, props)
    except Exception as failed:
        emit(Event("machines", node, step, "failed", str(failed)))
        raise
    emit(Event("machines", node, step, state, props["address"]))
    return outputs


def _adopt(api: docker.APIClient, props: Properties) -> dict[str, Any] | None:
    """Return the usable container of an earlier run, started; remove an unusable one of ours and return None."""
    name = names.container(props["cluster"], props["node"])
    container = _inspect(api, name)
    if container is None:
        return None
    engine_client.check_owner("container", name, container["Config"]["Labels"], props["cluster"], props["stack"])
    if not _is_usable(container, props):
        remove_container(api, name)
        return None
    api.put_archive(name, "/", node_container.archive_authorized_keys(props["ssh_public_key"]))
    if container["State"]["Paused"]:
        api.unpause(name)
    elif not container["State"]["Running"]:
        _start(api, name, props)
    return container


def _create_handling_conflict(api: docker.APIClient, props: Properties) -> dict[str, Any]:
    """Create the node's container; if its name is taken, adopt or remove the container that has it.

    Docker may finish creating a container for a run that was killed, after this run has looked for one.
    """
    try:
        return _create(api, props)
    except APIError as refused:
        if refused.status_code != HTTPStatus.CONFLICT:
            raise
        return _adopt(api, props) or _create(api, props)


def _create(api: docker.APIClient, props: Properties) -> dict[str, Any]:
    docker_volume.ensure_environment_cache(api)
    name = _create_container(api, props)
    key = ssh_key.generate(props["node"])
    try:
        api.put_archive(name, "/", node_container.archive_keys(props["ssh_public_key"], key.private, key.public))
        _start(api, name, props)
    except BaseException:
        remove_container(api, name)
        raise
    container: dict[str, Any] = api.inspect_container(name)
    return container


def _create_container(api: docker.APIClient, props: Properties) -> str:
    """Create the container without starting it; return its id."""
    labels = engine_client.labels(props["cluster"], props["stack"], props.get("tags", {}))
    endpoint = api.create_endpoint_config(ipv4_address=props["address"], aliases=[props["node"]])
    try:
        container = api.create_container(
            **node_container.options(props, labels),
            host_config=node_container.host_config(props, engine_client.engine(), api.api_version),
            networking_config={"EndpointsConfig": {props["network"]: endpoint}},
        )
    except ImageNotFound as missing:
        message = f"the node image {props['image']} does not exist"
        is_baked = str(props["image"]).startswith(f"{names.BAKED_IMAGE}:")
        fix = "name one that `muster image list` lists, or remove `local`" if is_baked else "`make up` builds it"
        raise ResourceError("local.image" if is_baked else "", message, fix) from missing
    return str(container["Id"])


def _start(api: docker.APIClient, name: str, props: Properties) -> None:
    try:
        api.start(name)
    except APIError as refused:
        port = props.get("ssh_port")
        explanation = str(refused.explanation)
        port_in_use = "already allocated" in explanation or "already in use" in explanation
        if port and f":{int(port)}" in explanation and port_in_use:
            raise ResourceError(
                "login.ssh_port",
                f"{int(port)} is taken on 127.0.0.1",
                "choose another port, or leave login.ssh_port out and use `make ssh`",
            ) from refused
        raise


def _wait_for_ssh(api: docker.APIClient, container: str, props: Properties) -> None:
    deadline, polls = time.monotonic() + _SSH_TIMEOUT_S, 0
    while not _ssh_answers(props["address"]):
        polls += 1
        if polls % _POLLS_PER_CONTAINER_CHECK == 0 and not _is_running(api.inspect_container(container)):
            raise _remove_failed_node(api, container, props, "it stopped while starting")
        if time.monotonic() > deadline:
            reason = f"no sshd at {props['address']} within {_SSH_TIMEOUT_S:g} s"
            raise _remove_failed_node(api, container, props, reason)
        time.sleep(_POLL_S)


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, _SSH_PORT), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _remove_failed_node(api: docker.APIClient, container: str, props: Properties, reason: str) -> ResourceError:
    """Remove a node that did not start, so that the next run creates it again; return the error with its last log."""
    log = api.logs(container, tail=_LOG_LINES).decode(errors="replace").split("\n")
    last_lines = "; ".join(line.strip() for line in log if line.strip())
    remove_container(api, container)
    fix = _INOTIFY_FIX if "Too many open files" in last_lines else "run it again"
    return ResourceError(f"node {props['node']}", f"{reason}; last lines of its log: {last_lines or 'none'}", fix)


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    """Return Docker's description of a container; None if it does not exist."""
    try:
        container: dict[str, Any] = api.inspect_container(name)
    except NotFound:
        return None
    return container


def _is_usable(container: dict[str, Any], props: Properties) -> bool:
    """Return whether a container is ours, was created from the same inputs on any release, and has its keys.

    The keys are in it if it was started at least once.
    """
    if container["State"]["Status"] == "created":
        return False
    labels = container["Config"]["Labels"]
    if engine_client.is_foreign(labels):
        return False
    return labels.get(names.STACK) == props["stack"] and labels.get(node_container.SPEC) in usable_hashes(props)


def _is_running(container: dict[str, Any]) -> bool:
    return bool(container["State"]["Running"] and not container["State"]["Paused"])


def _identity(api: docker.APIClient, container: dict[str, Any], props: Properties) -> Properties:
    """Return the outputs that identify a container; read the host key only if the state does not have it."""
    recorded_key = props.get("host_key") if props.get("machine_id") == container["Id"] else None
    return {
        "machine_id": container["Id"],
        "host_key": recorded_key or _read_host_key(api, container["Id"]),
        "created": container["Config"]["Labels"].get(names.CREATED, ""),
    }


def _read_host_key(api: docker.APIClient, container: str) -> str:
    stream, _stat = api.get_archive(container, _HOST_KEY)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        entry = tar.extractfile(tar.next() or "")
        text = entry.read().decode() if entry else ""
    return " ".join(text.split()[:2])
