"""A node of the local target: a container that runs systemd and sshd, with a host key made here and pinned."""

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
from infra.targets.local.strays import remove_container

_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_SSH_PORT = 22
_SSH_DEADLINE_S = 60.0
_POLL_S = 0.05
_LOOK_EVERY = 20
_LOG_LINES = 5
# Every node's systemd holds about five inotify instances; kernels allow 128 per user by default.
_INOTIFY_FIX = "`sysctl -w fs.inotify.max_user_instances=4096`, then run it again"


class DockerNodeProvider(ResourceProvider):
    """Inputs: NodeArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(names.container(props["cluster"], props["node"]), _ensure(props, "create"))

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.asking(f"node {props['node']}") as api:
            found = _inspect(api, id_)
            if found is None or not _whole(found, props):
                return ReadResult("", {})
            return ReadResult(id_, props | {"running": _running(found)} | _identity(api, found, props))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, node_container.REPLACING)
        updates = changed(olds, news, ("ssh_public_key",)) or not olds.get("running", True)
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_ensure(news, "start"))

    def delete(self, id_: str, props: Properties) -> None:
        node, cluster = props["node"], props["cluster"]
        emit(Event("machines", node, "remove", "start"))
        with engine_client.asking(f"node {node}") as api:
            found = _inspect(api, id_)
            if found is None or not engine_client.foreign(found["Config"]["Labels"]):
                remove_container(api, id_)
                cgroup_tree.remove_node(cluster, node)
        emit(Event("machines", node, "remove", "changed"))


@dataclass(frozen=True)
class NodeArgs:
    node: str
    cluster: str
    stack: str
    role: str
    group: str | None
    image: str
    cpus: int
    memory_mb: int
    devices: Sequence[str]
    ssh_port: int | None
    network: str
    network_id: pulumi.Input[str]
    address: pulumi.Input[str]
    mounts: Sequence[Mapping[str, str | bool]]
    ssh_public_key: pulumi.Input[str]
    tags: Mapping[str, str]


class DockerNode(Resource, module="muster", name="DockerNode"):
    address: pulumi.Output[str]
    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]

    def __init__(self, args: NodeArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = {"host_key": None, "machine_id": None, "running": None, "created": None}
        super().__init__(DockerNodeProvider(), args.node, {**vars(args), **outputs}, opts)


def _ensure(props: Properties, step: str) -> Properties:
    """The node as wanted, running, its sshd listening: taken over where it exists, else made."""
    node = props["node"]
    emit(Event("machines", node, step, "start"))
    try:
        with engine_client.asking(f"node {node}") as api:
            found = _adopt(api, props)
            state: State = "changed" if found is None else "ok"
            found = found or _make_in_spite_of_the_dead(api, props)
            _wait_for_ssh(api, found["Id"], props)
            outputs = props | {"running": True} | _identity(api, found, props)
    except Exception as failed:
        emit(Event("machines", node, step, "failed", str(failed)))
        raise
    emit(Event("machines", node, step, state, props["address"]))
    return outputs


def _adopt(api: docker.APIClient, props: Properties) -> dict[str, Any] | None:
    """The container of an earlier run, if it is whole and as wanted; any other of ours is removed."""
    name = names.container(props["cluster"], props["node"])
    found = _inspect(api, name)
    if found is None:
        return None
    engine_client.check_owner("container", name, found["Config"]["Labels"], props["cluster"], props["stack"])
    if not _whole(found, props):
        remove_container(api, name)
        return None
    api.put_archive(name, "/", node_container.authorized_keys(props["ssh_public_key"]))
    if found["State"]["Paused"]:
        api.unpause(name)
    elif not found["State"]["Running"]:
        _start(api, name, props)
    return found


def _make_in_spite_of_the_dead(api: docker.APIClient, props: Properties) -> dict[str, Any]:
    """The engine may just now finish a container that a killed run had asked for; then the name is taken, once."""
    try:
        return _make(api, props)
    except APIError as refused:
        if refused.status_code != HTTPStatus.CONFLICT:
            raise
        return _adopt(api, props) or _make(api, props)


def _make(api: docker.APIClient, props: Properties) -> dict[str, Any]:
    docker_volume.keep_environment_cache(api)
    name = _create_container(api, props)
    key = ssh_key.generate(props["node"])
    try:
        api.put_archive(name, "/", node_container.keys(props["ssh_public_key"], key.private, key.public))
        _start(api, name, props)
    except BaseException:
        remove_container(api, name)
        raise
    made: dict[str, Any] = api.inspect_container(name)
    return made


def _create_container(api: docker.APIClient, props: Properties) -> str:
    labels = engine_client.labels(props["cluster"], props["stack"], props.get("tags", {}))
    endpoint = api.create_endpoint_config(ipv4_address=props["address"], aliases=[props["node"]])
    try:
        made = api.create_container(
            **node_container.options(props, labels),
            host_config=node_container.host_config(props, engine_client.engine(), api.api_version),
            networking_config={"EndpointsConfig": {props["network"]: endpoint}},
        )
    except ImageNotFound as missing:
        raise ResourceError(
            "", f"the node image {props['image']} does not exist", "make it with `make setup`"
        ) from missing
    return str(made["Id"])


def _start(api: docker.APIClient, name: str, props: Properties) -> None:
    try:
        api.start(name)
    except APIError as refused:
        port = props.get("ssh_port")
        said = str(refused.explanation)
        if port and f":{int(port)}" in said and ("already allocated" in said or "already in use" in said):
            raise ResourceError(
                "login.ssh_port",
                f"{int(port)} is taken on 127.0.0.1",
                "choose another port, or leave login.ssh_port out and use `make ssh`",
            ) from refused
        raise


def _wait_for_ssh(api: docker.APIClient, container: str, props: Properties) -> None:
    deadline, tries = time.monotonic() + _SSH_DEADLINE_S, 0
    while not _ssh_answers(props["address"]):
        tries += 1
        if tries % _LOOK_EVERY == 0 and not _running(api.inspect_container(container)):
            raise _never_came_up(api, container, props, "it stopped while starting")
        if time.monotonic() > deadline:
            raise _never_came_up(api, container, props, f"no sshd at {props['address']} within {_SSH_DEADLINE_S:g} s")
        time.sleep(_POLL_S)


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, _SSH_PORT), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _never_came_up(api: docker.APIClient, container: str, props: Properties, what: str) -> ResourceError:
    """Says what the node's first process last wrote, and removes the node: the next run starts afresh."""
    log = api.logs(container, tail=_LOG_LINES).decode(errors="replace").split("\n")
    last = "; ".join(line.strip() for line in log if line.strip())
    remove_container(api, container)
    fix = _INOTIFY_FIX if "Too many open files" in last else "run it again"
    return ResourceError(f"node {props['node']}", f"{what}; its last words: {last or 'none'}", fix)


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.inspect_container(name)
    except NotFound:
        return None
    return found


def _whole(found: dict[str, Any], props: Properties) -> bool:
    """Ours, made from the same inputs, and started at least once: only then are its keys in it."""
    if found["State"]["Status"] == "created":
        return False
    labels = found["Config"]["Labels"]
    if engine_client.foreign(labels):
        return False
    wanted = {names.STACK: props["stack"], node_container.SPEC: node_container.spec_hash(props)}
    return {key: labels.get(key) for key in wanted} == wanted


def _running(found: dict[str, Any]) -> bool:
    return bool(found["State"]["Running"] and not found["State"]["Paused"])


def _identity(api: docker.APIClient, found: dict[str, Any], props: Properties) -> Properties:
    known = props.get("host_key") if props.get("machine_id") == found["Id"] else None
    return {
        "machine_id": found["Id"],
        "host_key": known or _host_key(api, found["Id"]),
        "created": found["Config"]["Labels"].get(names.CREATED, ""),
    }


def _host_key(api: docker.APIClient, container: str) -> str:
    stream, _stat = api.get_archive(container, _HOST_KEY)
    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
        entry = tar.extractfile(tar.next() or "")
        text = entry.read().decode() if entry else ""
    return " ".join(text.split()[:2])
