"""How people reach a cluster on AWS: SSH through Session Manager, with host keys that were known before the hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec
from infra.home import Home
from infra.resources import access
from infra.resources.properties import Properties, changed
from infra.targets.aws.session_manager import through_session_manager

_INPUTS = ("inventory", "spec", "stack", "region", "ssh_private_key")


class AccessProvider(ResourceProvider):
    """Inputs: inventory and spec (JSON), stack, region, ssh_private_key."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        _write(props)
        return CreateResult(f"access-{props['stack']}", props | {"stale": []})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        return DiffResult(changes=bool(changed(olds, news, _INPUTS) or olds.get("stale")))

    def read(self, id_: str, props: Properties) -> ReadResult:
        folder = _folder(props)
        return ReadResult(id_, props | {"stale": access.stale(folder, files(folder, props))})

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        _write(news)
        return UpdateResult(news | {"stale": []})


class Access(Resource, module="muster", name="AwsAccess"):
    def __init__(  # noqa: PLR0913
        self,
        name: str,
        *,
        inventory: pulumi.Input[str],
        spec: ClusterSpec,
        stack: str,
        region: str,
        ssh_private_key: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        props = {
            "inventory": inventory,
            "spec": spec.model_dump_json(),
            "stack": stack,
            "region": region,
            "ssh_private_key": ssh_private_key,
            "stale": None,
        }
        secret = pulumi.ResourceOptions(additional_secret_outputs=["ssh_private_key"])
        super().__init__(AccessProvider(), name, props, pulumi.ResourceOptions.merge(opts, secret))


def files(folder: Path, props: Properties) -> access.Files:
    """Those of every target, with another way to the hosts."""
    inventory = Inventory.model_validate_json(props["inventory"])
    spec = ClusterSpec.model_validate_json(props["spec"])
    made = access.files(folder, inventory, spec, props["ssh_private_key"])
    text = "\n".join(_hosts(folder, inventory, spec, props["region"])) + "\n"
    # One key for all compute nodes: which machine has a name may change, and what it shows does not.
    launched = "".join(f"{one.group}-* {one.host_key}\n" for one in inventory.sets)
    hosts, mode = made["known_hosts"]
    return made | {"ssh_config": (text, made["ssh_config"][1]), "known_hosts": (hosts + launched, mode)}


def _hosts(folder: Path, inventory: Inventory, spec: ClusterSpec, region: str) -> Iterator[str]:
    for node in inventory.nodes:
        yield f"Host {node.name}"
        yield f"  HostName {node.machine_id}"
        yield f"  HostKeyAlias {node.name}"
        yield f"  ProxyCommand {through_session_manager(region)}"
    yield "Host *"
    yield f"  User {next(iter(spec.users), 'root')}"
    yield f'  IdentityFile "{folder / "id_ed25519"}"'
    yield "  IdentitiesOnly yes"
    yield f'  UserKnownHostsFile "{folder / "known_hosts"}"'
    yield "  StrictHostKeyChecking yes"
    yield "  ServerAliveInterval 15"


def _write(props: Properties) -> None:
    folder = _folder(props)
    access.write(folder, files(folder, props))


def _folder(props: Properties) -> Path:
    return Home.of(os.environ).stack(props["stack"]).folder
