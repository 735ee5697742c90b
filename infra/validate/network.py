"""Rules about addresses: a private range, written as one."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning

PRIVATE = tuple(IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
EXAMPLE = "10.88.7.0/24"


def cidr(spec: ClusterSpec) -> Iterator[Issue]:
    text = spec.network.cidr
    if text is None:
        return
    network = parse_range(text)
    if network is None:
        message = f"'{text}' is not an IPv4 range; allowed: the first address of the range and a prefix length"
        yield error("cidr_format", "network.cidr", message, f"write for example `cidr: {_meant(text)}`")
    elif not any(network.subnet_of(private) for private in PRIVATE):
        message = f"'{text}' is not a private range; allowed: inside {', '.join(map(str, PRIVATE))}"
        yield error("cidr_public", "network.cidr", message, f"write for example `cidr: {EXAMPLE}`")


def login_size(spec: ClusterSpec) -> Iterator[Issue]:
    if not spec.login.enabled and spec.login.size is not None:
        message = "has no effect: there is no login node (login.enabled is false)"
        yield warning("login_size_ignored", "login.size", message, "remove it, or write `enabled: true`")


def parse_range(text: str) -> IPv4Network | None:
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
