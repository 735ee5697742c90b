"""Rules on the network: the address range must be well-formed and private."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning

PRIVATE = tuple(IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
EXAMPLE = "10.88.7.0/24"


def check_cidr(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse an address range that is malformed or public."""
    text = spec.network.cidr
    if text is None:
        return
    network = parse_range(text)
    if network is None:
        message = f"'{text}' is not an IPv4 range; allowed: the first address of the range and a prefix length"
        yield error("cidr_format", "network.cidr", message, f"write for example `cidr: {_suggest_range(text)}`")
    elif not any(network.subnet_of(private) for private in PRIVATE):
        message = f"'{text}' is not a private range; allowed: inside {', '.join(map(str, PRIVATE))}"
        yield error("cidr_public", "network.cidr", message, f"write for example `cidr: {EXAMPLE}`")


def check_login_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about the size of a login node that does not exist."""
    if not spec.login.enabled and spec.login.size is not None:
        message = "has no effect: there is no login node (login.enabled is false)"
        yield warning("login_size_ignored", "login.size", message, "remove it, or write `enabled: true`")


def parse_range(text: str) -> IPv4Network | None:
    """Return the IPv4 range, or None if the text is not one in its canonical form."""
    try:
        network = IPv4Network(text)
    except ValueError:
        return None
    return network if str(network) == text else None


def _suggest_range(text: str) -> str:
    try:
        network = IPv4Network(text, strict=False)
    except ValueError:
        return EXAMPLE
    return str(network) if network.prefixlen < network.max_prefixlen else EXAMPLE
