"""Rules about addresses and ports: a private range with room for every node, a port that can be published."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.plan import plan

PRIVATE = tuple(IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
EXAMPLE = "10.88.7.0/24"
AUTOMATIC_PREFIX = 24
# The network's own address, the gateway and the broadcast address.
NOT_FOR_NODES = 3


def cidr(spec: ClusterSpec) -> Iterator[Issue]:
    text = spec.network.cidr
    if text is None:
        return
    network = _parsed(text)
    if network is None:
        message = f"'{text}' is not an IPv4 range; allowed: the first address of the range and a prefix length"
        yield error("cidr_format", "network.cidr", message, f"write for example `cidr: {_meant(text)}`")
    elif not any(network.subnet_of(private) for private in PRIVATE):
        message = f"'{text}' is not a private range; allowed: inside {', '.join(map(str, PRIVATE))}"
        yield error("cidr_public", "network.cidr", message, f"write for example `cidr: {EXAMPLE}`")


def room(spec: ClusterSpec) -> Iterator[Issue]:
    if spec.target != "local":
        return
    network = _parsed(spec.network.cidr) if spec.network.cidr else None
    if spec.network.cidr and network is None:
        return
    prefix = network.prefixlen if network else AUTOMATIC_PREFIX
    nodes = len(plan(spec).nodes)
    free = max(0, 2 ** (32 - prefix) - NOT_FOR_NODES)
    if nodes > free:
        needed = 32 - (nodes + NOT_FOR_NODES - 1).bit_length()
        larger = network.supernet(new_prefix=needed) if network else f"10.88.0.0/{needed}"
        message = f"a /{prefix} has room for {free} nodes, the cluster has {nodes}; allowed: /{needed} or larger"
        yield error("cidr_small", "network.cidr", message, f"write for example `cidr: {larger}`")


def login_port(spec: ClusterSpec) -> Iterator[Issue]:
    port, where = spec.login.ssh_port, "login.ssh_port"
    if port is None or spec.target != "local":
        return
    if not spec.login.enabled:
        message = f"{port} cannot be published: there is no login node (login.enabled is false)"
        yield error("port_without_login", where, message, "remove it, or write `enabled: true`")
    if not spec.network.egress:
        message = f"{port} cannot be published: Docker publishes no port of a network without egress"
        yield error("port_without_egress", where, message, "remove it, or write `egress: true` under `network:`")


def login_size(spec: ClusterSpec) -> Iterator[Issue]:
    if not spec.login.enabled and spec.login.size is not None:
        message = "has no effect: there is no login node (login.enabled is false)"
        yield warning("login_size_ignored", "login.size", message, "remove it, or write `enabled: true`")


def _parsed(text: str) -> IPv4Network | None:
    try:
        network = IPv4Network(text)
    except ValueError:
        return None
    return network if str(network) == text else None


def _meant(text: str) -> str:
    try:
        network = IPv4Network(text, strict=False)
    except ValueError:
        return EXAMPLE
    return str(network) if network.prefixlen < network.max_prefixlen else EXAMPLE
