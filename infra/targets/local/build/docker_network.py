"""The cluster's network: a Docker bridge with a range of its own, and the address of every node in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_RACES = 5


class DockerNetworkProvider(ResourceProvider):
    """Inputs: NetworkArgs. The address range is chosen at creation only."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        name = names.network(props["cluster"])
        with engine_client.asking(f"network {name}") as api:
            found = _ours(api, name, props) or _make(api, name, props)
            return CreateResult(name, _outputs(api, found, props, known={}))

    def read(self, id_: str, props: Properties) -> ReadResult:
        with engine_client.asking(f"network {id_}") as api:
            found = _inspect(api, id_)
            if found is None or engine_client.foreign(found.get("Labels")):
                return ReadResult("", {})
            return ReadResult(id_, props | _identity(found))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster", "stack", "egress"))
        if news.get("cidr") is not None and changed({"cidr": olds["range"]}, news, ("cidr",)):
            replaces.append("cidr")
        names_changed = set(news["nodes"]) != set(olds["addresses"])
        return DiffResult(changes=bool(replaces) or names_changed, replaces=replaces, delete_before_replace=True)

    def update(self, id_: str, olds: Properties, news: Properties) -> UpdateResult:
        with engine_client.asking(f"network {id_}") as api:
            return UpdateResult(_outputs(api, api.inspect_network(id_), news, known=olds["addresses"]))

    def delete(self, id_: str, props: Properties) -> None:
        with engine_client.asking(f"network {id_}") as api:
            remove_strays(api, props["cluster"], props["stack"])
            remove(api, id_)
            cgroup_tree.remove_cluster(props["cluster"])


@dataclass(frozen=True)
class NetworkArgs:
    cluster: str
    stack: str
    nodes: Sequence[str]
    egress: bool
    cidr: str | None
    tags: Mapping[str, str]


class DockerNetwork(Resource, module="muster", name="DockerNetwork"):
    network_id: pulumi.Output[str]
    addresses: pulumi.Output[dict[str, str]]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = {"network_id": None, "range": None, "addresses": None, "created": None}
        super().__init__(DockerNetworkProvider(), name, {**vars(args), **outputs}, opts)


def check_name_free(cluster: str, stack: str) -> None:
    """Raise ResourceError where a network of another owner has the cluster's name."""
    name = names.network(cluster)
    with engine_client.asking("name") as api:
        networks = [network for network in api.networks(names=[name]) if network["Name"] == name]
    for network in networks:
        engine_client.check_owner("network", name, network["Labels"], cluster, stack)


def remove(api: docker.APIClient, name: str) -> None:
    """What another home has made under this name stays. Takes off what is attached: Docker would keep the network."""
    found = _inspect(api, name)
    if found is None or engine_client.foreign(found.get("Labels")):
        return
    for container in found.get("Containers") or {}:
        _unless_gone(lambda one=container: api.disconnect_container_from_network(one, name, force=True))
    _unless_gone(lambda: api.remove_network(name))


def _ours(api: docker.APIClient, name: str, props: Properties) -> dict[str, Any] | None:
    """The network of an earlier, interrupted or forgotten run; an empty one that does not fit any more is removed."""
    found = _inspect(api, name)
    if found is None:
        return None
    engine_client.check_owner("network", name, found.get("Labels"), props["cluster"], props["stack"])
    wanted = props.get("cidr") or _range(found)
    if _range(found) == wanted and found["Internal"] == (not props["egress"]):
        return found
    if _members(api, name, props):
        raise ResourceError(
            _CIDR,
            f"network {name} exists with {_range(found)}, {'no ' if found['Internal'] else ''}egress and nodes in it",
            f"remove the cluster first with `make teardown STACK={props['stack']}`",
        )
    remove(api, name)
    return None


def _make(api: docker.APIClient, name: str, props: Properties) -> dict[str, Any]:
    for _ in range(_RACES):
        if props.get("cidr"):
            _refuse_clash(api, props["cidr"])
        cidr = props.get("cidr") or _pick(api)
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
            if "overlap" in str(refused.explanation).lower():  # another cluster took the range between look and call
                continue
            raise
        made: dict[str, Any] = api.inspect_network(name)
        return made
    raise ResourceError(_CIDR, "other networks keep taking the address range", "run it again")


def _pick(api: docker.APIClient) -> str:
    free = addresses.first_free(_taken(api).values())
    if free is None:
        raise ResourceError(
            _CIDR,
            f"no /24 of {addresses.POOL} is free",
            "set network.cidr to a range that nothing on this machine uses",
        )
    return free


def _refuse_clash(api: docker.APIClient, cidr: str) -> None:
    taken = _taken(api)
    holder = addresses.holder(cidr, taken)
    if holder is not None:
        raise ResourceError(
            _CIDR,
            f"{cidr} is in use: it overlaps {holder}",
            f"leave network.cidr out, or set it to a free range such as {addresses.first_free(taken.values())}",
        )


def _taken(api: docker.APIClient) -> dict[str, IPv4Network]:
    taken = {}
    for network in api.networks():
        for config in (network.get("IPAM") or {}).get("Config") or []:
            subnet = config.get("Subnet", "")
            if "." in subnet:
                taken[f"the Docker network {network['Name']} ({subnet})"] = IPv4Network(subnet)
    table = Path("/proc/net/route")
    return taken | (addresses.routes(table.read_text()) if table.exists() else {})


def _outputs(api: docker.APIClient, found: dict[str, Any], props: Properties, known: dict[str, str]) -> Properties:
    live = _members(api, found["Name"], props)
    given = addresses.assign(live | known, props["nodes"], _range(found))
    return props | _identity(found) | {"addresses": given}


def _identity(found: dict[str, Any]) -> Properties:
    return {"network_id": found["Id"], "range": _range(found), "created": found["Labels"].get(names.CREATED, "")}


def _members(api: docker.APIClient, network: str, props: Properties) -> dict[str, str]:
    """Addresses of the node containers there are, running or not: what a lost state file knew."""
    wanted = {"label": [f"{names.CLUSTER}={props['cluster']}", f"{names.STACK}={props['stack']}"]}
    found = {}
    for container in api.containers(all=True, filters=wanted):
        endpoint = container["NetworkSettings"]["Networks"].get(network) or {}
        address = (endpoint.get("IPAMConfig") or {}).get("IPv4Address")
        if address:
            found[container["Labels"][names.NODE]] = address
    return found


def _inspect(api: docker.APIClient, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.inspect_network(name)
    except NotFound:
        return None
    return found


def _range(found: dict[str, Any]) -> str:
    return str(found["IPAM"]["Config"][0]["Subnet"])


def _unless_gone(act: Any) -> None:
    try:
        act()
    except NotFound:
        return
