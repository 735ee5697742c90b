"""A host as a Pulumi resource: create adopts it, read looks for its claim, update logs in again, delete releases it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.action import digest
from bootstrap.changes import SCRIPT
from bootstrap.progress import Event, emit
from bootstrap.transport.base import TransportError
from cluster import names
from infra.home import Home
from infra.resources.properties import Properties, changed
from infra.targets.hosts.adopt import adopt_host, read_claim, release_host
from infra.targets.hosts.claim import Claim
from infra.targets.hosts.login import parse_login
from infra.targets.hosts.receipts import forget_receipt, save_receipt
from infra.targets.hosts.state import identify_owner

_REPLACING = ("cluster", "stack", "host", "node")


class HostProvider(ResourceProvider):
    """The provider of Host; its inputs are HostArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(props["host"], _adopt(props))

    def read(self, id_: str, props: Properties) -> ReadResult:
        """Return nothing if the host has lost its claim: it was installed again, and `up` adopts it again."""
        try:
            claim = read_claim(parse_login(props["login"]))
        except TransportError:
            # A refresh must not fail because a host is down; the update that follows says why it does not answer.
            return ReadResult(id_, props | {"reachable": False})
        if claim is None or claim.id != props["machine_id"]:
            return ReadResult("", {})
        return ReadResult(id_, props | {"reachable": True})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, _REPLACING)
        if "login" in changed(olds, news, ("login",)) and _locate(olds) != _locate(news):
            replaces.append("login")
        updates = changed(olds, news, ("login", "ssh_public_key", "journal")) or not olds.get("reachable", True)
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(_adopt(news))

    def delete(self, _id: str, props: Properties) -> None:
        node = props["node"]
        emit(Event("machines", node, "release", "start"))
        restored = release_host(parse_login(props["login"]), props["machine_id"])
        save_receipt(Home.of(os.environ), props["stack"], props["host"], restored)
        emit(Event("machines", node, "release", "changed"))


@dataclass(frozen=True)
class HostArgs:
    """The inputs of a Host."""

    host: str
    node: str
    cluster: str
    stack: str
    login: str
    """A HostLogin as JSON."""
    ssh_public_key: pulumi.Input[str]
    """The cluster's key, which may log in as root."""
    journal: str = digest(SCRIPT)
    """Which version of the journal's script the host has: a later one replaces it, because teardown runs it."""


class Host(Resource, module="muster", name="Host"):
    """A host that belongs to the cluster, and that its cluster's key can log in to."""

    address: pulumi.Output[str]
    host_key: pulumi.Output[str]
    hostname: pulumi.Output[str]
    machine_id: pulumi.Output[str]
    """Id of the claim: changes if the host is adopted again."""
    cpus: pulumi.Output[int]
    memory_mb: pulumi.Output[int]

    def __init__(self, args: HostArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("address", "host_key", "hostname", "machine_id", "cpus", "memory_mb", "reachable"))
        super().__init__(HostProvider(), args.host, {**vars(args), **outputs}, opts)


def _locate(props: Properties) -> tuple[str, int, object]:
    """Return which machine a login leads to."""
    login = parse_login(props["login"])
    return login.address, login.port, login.jump


def _adopt(props: Properties) -> Properties:
    node = props["node"]
    emit(Event("machines", node, "adopt", "start"))
    home = Home.of(os.environ)
    owner = identify_owner(props["cluster"], home.stack(props["stack"]), props["ssh_public_key"])
    claim = Claim(
        **asdict(owner),
        home_path=names.home_labels(home.root)[names.HOME_PATH],
        node=node,
        id=uuid4().hex,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        facts = adopt_host(parse_login(props["login"]), claim, props["ssh_public_key"])
    except Exception as failed:
        emit(Event("machines", node, "adopt", "failed", str(failed)))
        raise
    forget_receipt(home, props["stack"], props["host"])
    emit(Event("machines", node, "adopt", "changed" if facts.claim.id == claim.id else "ok", facts.address))
    return props | {
        "address": facts.address,
        "host_key": facts.host_key,
        "hostname": facts.hostname,
        "machine_id": facts.claim.id,
        "cpus": facts.cpus,
        "memory_mb": facts.memory_mb,
        "reachable": True,
    }
