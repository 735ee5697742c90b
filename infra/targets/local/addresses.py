"""The addresses of nodes: a node keeps its address for as long as it exists. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from cluster import names
from cluster.plural import format_count

POOL = IPv4Network("10.88.0.0/16")
"""The range from which clusters without `network.cidr` get a free /24."""

_WELL_KNOWN = {names.CONTROLLER: 10, names.LOGIN: 11}
_FIRST_OTHER = 20
_GATEWAY = 1


class NoAddressLeft(ValueError):
    """The address range holds fewer addresses than there are nodes."""


def assign(old: Mapping[str, str], node_names: Sequence[str], cidr: str) -> dict[str, str]:
    """Return addresses by node name.

    An address in `old` is not given to another node: old nodes are removed only after new ones are created.
    """
    network = IPv4Network(cidr)
    unchanged = {name: old[name] for name in node_names if name in old and IPv4Address(old[name]) in network}
    taken = {IPv4Address(address) for address in (*old.values(), *unchanged.values())}
    given = dict(unchanged)
    for name in node_names:
        if name in given:
            continue
        address = _first_free(name, network, taken)
        if address is None:
            raise NoAddressLeft(
                f"network.cidr: {cidr} has no address left for {name} ({format_count(len(node_names), 'node')}). "
                f"Fix: use a larger range, or fewer nodes"
            )
        taken.add(address)
        given[name] = str(address)
    return {name: given[name] for name in node_names}


def first_free(taken: Iterable[IPv4Network]) -> str | None:
    """Return the first /24 of the pool that overlaps no range in `taken`; None if there is none."""
    used = tuple(taken)
    return next((str(c) for c in POOL.subnets(new_prefix=24) if not any(c.overlaps(u) for u in used)), None)


def holder(cidr: str, taken: Mapping[str, IPv4Network]) -> str | None:
    """Return the name of the first range in `taken` that overlaps `cidr`; None if there is none."""
    requested = IPv4Network(cidr)
    return next((name for name, network in taken.items() if requested.overlaps(network)), None)


def routes(table: str) -> dict[str, IPv4Network]:
    """Return the ranges that this machine routes, except the default route, from the text of /proc/net/route."""
    ranges = {}
    for line in table.splitlines()[1:]:
        interface, destination, *_, mask, _mtu, _window, _irtt = line.split()
        network = IPv4Network(f"{_little_endian(destination)}/{_little_endian(mask)}", strict=False)
        if network.prefixlen:
            ranges[f"the route to {network} on {interface}"] = network
    return ranges


def _first_free(name: str, network: IPv4Network, taken: set[IPv4Address]) -> IPv4Address | None:
    size = network.num_addresses
    others = (*range(_FIRST_OTHER, size - 1), *range(_GATEWAY + 1, min(_FIRST_OTHER, size - 1)))
    preferred = (_WELL_KNOWN[name], *others) if _WELL_KNOWN.get(name, size) < size - 1 else others
    reserved = {offset for other, offset in _WELL_KNOWN.items() if other != name}
    candidates = (*(o for o in preferred if o not in reserved), *(o for o in preferred if o in reserved))
    return next((network[o] for o in candidates if network[o] not in taken), None)


def _little_endian(word: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(word), "little"))
