"""The files with which people reach a cluster on AWS: SSH through Session Manager, with host keys known in advance."""

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
from infra.targets.aws.session_manager import render_proxy_command

_INPUTS = ("inventory", "spec", "stack", "region", "ssh_private_key")


class AccessProvider(ResourceProvider):
    """Pulumi provider of the files; its inputs are inventory and spec (JSON), stack, region, ssh_private_key."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        _write(props)
        return CreateResult(f"access-{props['stack']}", props | {"stale": []})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        return DiffResult(changes=bool(changed(olds, news, _INPUTS) or olds.get("stale")))

    def read(self, id_: str, props: Properties) -> ReadResult:
        folder = _folder(props)
        return ReadResult(id_, props | {"stale": access.stale(folder, render_files(folder, props))})

    def update(self, _id: str, _olds: Properties, news: Properties) -> UpdateResult:
        _write(news)
        return UpdateResult(news | {"stale": []})


class Access(Resource, module="muster", name="AwsAccess"):
    """The SSH files of a stack."""

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


def render_files(folder: Path, props: Properties) -> access.Files:
    """Return the files that every target writes, with hosts that are reached through Session Manager."""
    inventory = Inventory.model_validate_json(props["inventory"])
    spec = ClusterSpec.model_validate_json(props["spec"])
    files = access.files(folder, inventory, spec, props["ssh_private_key"])
    ssh_config = "\n".join(_ssh_config(folder, inventory, spec, props["region"])) + "\n"
    # The machine behind a name may change, its key does not.
    keys = {name: key for node_set in inventory.sets for name, key in node_set.known_hosts.items()}
    compute_hosts = "".join(f"{name} {key}\n" for name, key in keys.items())
    known_hosts, mode = files["known_hosts"]
    return files | {
        "ssh_config": (ssh_config, files["ssh_config"][1]),
        "known_hosts": (known_hosts + compute_hosts, mode),
    }


def _ssh_config(folder: Path, inventory: Inventory, spec: ClusterSpec, region: str) -> Iterator[str]:
    for node in inventory.nodes:
        yield f"Host {node.name}"
        yield f"  HostName {node.machine_id}"
        yield f"  HostKeyAlias {node.name}"
        yield f"  ProxyCommand {render_proxy_command(region)}"
    yield "Host *"
    yield f"  User {next(iter(spec.users), 'root')}"
    yield f'  IdentityFile "{folder / "id_ed25519"}"'
    yield "  IdentitiesOnly yes"
    yield f'  UserKnownHostsFile "{folder / "known_hosts"}"'
    yield "  StrictHostKeyChecking yes"
    yield "  ServerAliveInterval 15"


def _write(props: Properties) -> None:
    folder = _folder(props)
    access.write(folder, render_files(folder, props))


def _folder(props: Properties) -> Path:
    return Home.of(os.environ).stack(props["stack"]).folder
