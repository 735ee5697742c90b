"""Slurm on the nodes as a Pulumi resource: create and update run the bootstrap, refresh looks for drift."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from bootstrap.apply import apply
from bootstrap.bundle import pack_shared
from bootstrap.desired import Desired, Secrets
from bootstrap.drift import find_drift
from bootstrap.progress import Event, emit
from bootstrap.sessions import SharedConnections
from bootstrap.transport.ssh import CONNECT_DEADLINE_S, SshTransport, public_key
from bootstrap.verify import STEP as VERIFY
from bootstrap.verify import verify
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec
from infra.home import Home
from infra.resources import access
from infra.resources.properties import Properties, changed

_INPUTS = ("inventory", "spec", "stack", "bundle", "ssh_private_key", "slurm_key", "db_password", "webhook")
_SECRET = ["ssh_private_key", "slurm_key", "db_password", "webhook"]
# A refresh connects to nodes that may be gone, so it waits for less time than a bootstrap.
_REFRESH_DEADLINE_S = 5.0


class SlurmClusterProvider(ResourceProvider):
    """The provider of SlurmCluster. Inputs: SlurmClusterArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"slurm-{props['stack']}", props | _bootstrap(props))

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _bootstrap(news))

    def read(self, id_: str, props: Properties) -> ReadResult:
        return ReadResult(id_, props | {"pending": _pending(props)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        return DiffResult(changes=bool(changed(olds, news, _INPUTS) or olds.get("pending")))


@dataclass(frozen=True)
class SlurmClusterArgs:
    """The inputs of a Slurm cluster."""

    inventory: pulumi.Input[str]
    spec: str
    stack: str
    bundle: str
    ssh_private_key: pulumi.Input[str]
    slurm_key: pulumi.Input[str]
    db_password: pulumi.Input[str]
    webhook: pulumi.Input[str] | None = None


class SlurmCluster(Resource, module="muster", name="SlurmCluster"):
    """Slurm, configured and running on the nodes."""

    applied_at: pulumi.Output[str]
    changed: pulumi.Output[int]
    inventory_fingerprint: pulumi.Output[str]
    pending: pulumi.Output[list[str]]
    environment: pulumi.Output[str]
    """Path of the training environment on the nodes."""

    def __init__(self, name: str, args: SlurmClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        outputs = {
            "applied_at": None,
            "changed": None,
            "inventory_fingerprint": None,
            "pending": None,
            "environment": None,
        }
        private = pulumi.ResourceOptions(additional_secret_outputs=_SECRET)
        merged = pulumi.ResourceOptions.merge(opts, private)
        super().__init__(SlurmClusterProvider(), name, {**vars(args), **outputs}, merged)


def bundle_digest(spec: ClusterSpec) -> str:
    """Return the `bundle` input, which changes when the files for the nodes change."""
    root = Home.of(os.environ).repo
    lock = (root / spec.software.training_lock).read_bytes()
    return pack_shared(root, sha256(lock).hexdigest()).digest


def _bootstrap(props: Properties) -> Properties:
    desired, connect = _desired(props), _connect(props, CONNECT_DEADLINE_S)
    folder = Home.of(os.environ).stack(props["stack"]).folder
    access.write(folder, access.files(folder, desired.inventory, desired.spec, props["ssh_private_key"]))
    connections = SharedConnections(connect)
    try:
        outcome = apply(desired, connections.connect)
        _verify(desired, connections)
    finally:
        connections.close()
    return {
        "applied_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": outcome.changed,
        "inventory_fingerprint": sha256(props["inventory"].encode()).hexdigest()[:16],
        "pending": [],
        "environment": desired.environment,
    }


def _verify(desired: Desired, connections: SharedConnections) -> None:
    controller = desired.inventory.controller.name
    emit(Event("bootstrap", controller, VERIFY, "start"))
    failed = verify(desired, connections.connect)
    for failure in failed:
        emit(Event("bootstrap", failure.node, VERIFY, "failed", f"{failure.check}: {failure.line}"))
    if failed:
        raise failed[0].error()
    emit(Event("bootstrap", controller, VERIFY, "ok"))


def _pending(props: Properties) -> list[str]:
    """Describe the drift that a refresh finds; never fail, because a broken cluster must still be refreshed."""
    try:
        desired = _desired(props)
    except (OSError, ValueError) as problem:
        return [f"the inputs of the cluster cannot be read ({type(problem).__name__})"]
    folder = Home.of(os.environ).stack(props["stack"]).folder
    contents = access.files(folder, desired.inventory, desired.spec, props["ssh_private_key"])
    lost = [f"access file {name} is missing or changed" for name in access.stale(folder, contents)]
    return lost + [str(drift) for drift in find_drift(desired, _connect(props, _REFRESH_DEADLINE_S))]


def _desired(props: Properties) -> Desired:
    return Desired(
        Inventory.model_validate_json(props["inventory"]),
        ClusterSpec.model_validate_json(props["spec"]),
        Secrets(
            base64.b64decode(props["slurm_key"]),
            props["db_password"],
            public_key(props["ssh_private_key"]),
            webhook=props.get("webhook") or "",
        ),
        Home.of(os.environ).repo,
    )


def _connect(props: Properties, deadline_s: float) -> Callable[..., SshTransport]:
    return partial(SshTransport.connect, private_key=props["ssh_private_key"], deadline_s=deadline_s)
