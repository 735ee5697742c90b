"""The network of a local cluster: a Docker bridge with its own address range, and the address of every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker
import pulumi
from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from cluster import names
from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed
from infra.targets.local import addresses, cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.strays import remove_strays

_CIDR = "network.cidr"
_CREATE_ATTEMPTS = 5


class DockerNetworkProvider(ResourceProvider):
    """The provider of DockerNetwork; its inputs are NetworkArgs.

    The address range is chosen when the network is created and does not change afterwards.
    """

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        name = names.network(props["cluster"])
        with engine_client.api_session(f"network {name}") as api:
            network = _adopt(api, name, props) or _create(api, name, props)
            return CreateResult(name, _outputs(api, network, props, recorded={}))

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.api_session(f"network {id_}") as api:
            network = _inspect(api, id_)
            if network is None or engine_client.is_foreign(network.get("Labels")):
                return ReadResult("", {})
            return ReadResult(id_, props | _identity(network))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster", "stack", "egress"))
        if news.get("cidr") is not None and changed({"cidr": olds["range"]}, news, ("cidr",)):
            replaces.append("cidr")
        names_changed = set(news["nodes"]) != set(olds["addresses"])
        return DiffResult(changes=bool(replaces) or names_changed, replaces=replaces, delete_before_replace=True)

    def update(self, id_: str, olds: Properties, news: Properties) -> UpdateResult:
        with engine_client.api_session(f"network {id_}") as api:
            return UpdateResult(_outputs(api, api.inspect_network(id_), news, recorded=olds["addresses"]))

    def delete(self, id_: str, props: Properties) -> None:
        with engine_client.api_session(f"network {id_}") as api:
            remove_strays(api, props["cluster"], props["stack"])
            remove(api, id_)
            cgroup_tree.remove_cluster(props["cluster"])


@dataclass(frozen=True)
class NetworkArgs:
    """The inputs of a DockerNetwork."""

    cluster: str
    stack: str
    nodes: Sequence[str]
    """Names of the nodes that need an address."""
    egress: bool
    """Whether nodes can open connections to other networks."""
    cidr: str | None
    """The address range in the spec; None to choose a free one."""
    tags: Mapping[str, str]


class DockerNetwork(Resource, module="muster", name="DockerNetwork"):
    """The Docker bridge of a cluster."""

    network_id: pulumi.Output[str]
    addresses: pulumi.Output[dict[str, str]]
    """The IPv4 address of each node, by node name."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = {"network_id": None, "range": None, "addresses": None, "created": None}
        super().__init__(DockerNetworkProvider(), name, {**vars(args), **outputs}, opts)


def list_used_ranges(api: docker.APIClient) -> dict[str, IPv4Network]:
    """Return the address ranges of Docker's networks and of this machine's routes, by a description of the user."""
    used_ranges = {}
    for network in api.networks():
        for config in (network.get("IPAM") or {}).get("Config") or []:
            subnet = config.get("Subnet", "")
            if "." in subnet:
                used_ranges[f"the Docker network {network['Name']} ({subnet})"] = IPv4Network(subnet)
    table = Path("/proc/net/route")
    return used_ranges | (addresses.routes(table.read_text()) if table.exists() else {})


def remove(api: docker.APIClient, name: str) -> None:
    """Remove a network, if it exists and does not belong to another MUSTER_HOME.

    Containers are disconnected first, because Docker does not remove a network in use.
    """
    network = _inspect(api, name)
    if network is None or engine_client.is_foreign(network.get("Labels")):
        return
    for container in network.get("Containers") or {}:
        with suppress(NotFound):
            api.disconnect_container_from_network(container, name, force=True)
    with suppress(NotFound):
        api.remove_network(name)


def _adopt(api: docker.APIClient, name: str, props: Properties) -> dict[str, Any] | None:
    """Return the network that an interrupted or forgotten run created; remove it if it is empty and does not match."""
    network = _inspect(api, name)
    if network is None:
        return None
    engine_client.check_owner("network", name, network.get("Labels"), props["cluster"], props["stack"])
    expected_range = props.get("cidr") or _range(network)
    if _range(network) == expected_range and network["Internal"] == (not props["egress"]):
        return network
    if _read_node_addresses(api, name, props):
        egress = "no egress" if network["Internal"] else "egress"
        raise ResourceError(
            _CIDR,
            f"network {name} exists with {_range(network)}, {egress} and nodes in it",
            f"remove the cluster first with `make teardown STACK={props['stack']}`",
        )
    remove(api, name)
    return None


def _create(api: docker.APIClient, name: str, props: Properties) -> dict[str, Any]:
    for _ in range(_CREATE_ATTEMPTS):
        if props.get("cidr"):
            _check_range_free(api, props["cidr"])
        cidr = props.get("cidr") or _choose_range(api)
        try:
            api.create_network(
                name,
                driver="bridge",
                internal=not props["egress"],
                check_duplicate=True,
                ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=cidr)]),
                labels=engine_client.labels(props["cluster"], props["stack"], props.get("tags", {})),
            )
        except APIError as refused:
            # Another cluster took the range after it was found to be free.
            if "overlap" in str(refused.explanation).lower():
                continue
            raise
        network: dict[str, Any] = api.inspect_network(name)
        return network
    raise ResourceError(_CIDR, "other networks keep taking the address range", "run it again")


def _choose_range(api: docker.APIClient) -> str:
    free = addresses.first_free(list_used_ranges(api).values())
    if free is None:
        raise ResourceError(
            _CIDR,
            f"no /24 of {addresses.POOL} is free",
            "set network.cidr to a range that nothing on this machine uses",
        )
    return free


def _check_range_free(api: docker.APIClient, cidr: str) -> None:
    used_ranges = list_used_ranges(api)
    holder = addresses.holder(cidr, used_ranges)
    if holder is not None:
        free = addresses.first_free(used_ranges.values())
        raise ResourceError(
            _CIDR,
            f"{cidr} is in use: it overlaps {holder}",
            f"leave network.cidr out, or set it to a free range, for example {free}",
        )


def _outputs(api: docker.APIClient, network: dict[str, Any], props: Properties, recorded: dict[str, str]) -> Properties:
    """Return the outputs of the resource; nodes keep the addresses that their containers have or the state records."""
    existing = _read_node_addresses(api, network["Name"], props)
    assigned = addresses.assign(existing | recorded, props["nodes"], _range(network))
    return props | _identity(network) | {"addresses": assigned}


def _identity(network: dict[str, Any]) -> Properties:
    return {"network_id": network["Id"], "range": _range(network), "created": network["Labels"].get(names.CREATED, "")}


def _read_node_addresses(api: docker.APIClient, network: str, props: Properties) -> dict[str, str]:
    """Return the address of each existing node container, running or not; this replaces a lost state file."""
    filters = {"label": [f"{names.CLUSTER}={props['cluster']}", f"{names.STACK}={props['stack']}"]}
    node_addresses = {}
    for container in api.containers(all=True, filters=filters):
        endpoint = container["NetworkSettings"]["Networks"].get(network) or {}
        address = (endpoint.get("IPAMConfig") or {}).get("IPv4Address")
        if address:
            node_addresses[container["Labels"][names.NODE]] = address
    return node_addresses


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    """Return Docker's description of a network; None if it does not exist."""
    try:
        network: dict[str, Any] = api.inspect_network(name)
    except NotFound:
        return None
    return network


def _range(network: dict[str, Any]) -> str:
    return str(network["IPAM"]["Config"][0]["Subnet"])
