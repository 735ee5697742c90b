"""Which node gets which address: the same name keeps its address for as long as it exists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from cluster import names

POOL = IPv4Network("10.88.0.0/16")
"""Where a cluster that names no range of its own finds one."""

_WELL_KNOWN = {names.CONTROLLER: 10, names.LOGIN: 11}
_FIRST_OTHER = 20
_GATEWAY = 1


class NoAddressLeft(ValueError):
    """The address range holds fewer addresses than there are nodes."""


def assign(old: Mapping[str, str], wanted: Sequence[str], cidr: str) -> dict[str, str]:
    """Addresses by node name. What `old` gave away goes to no other name in the same step: a node that leaves is
    removed only after the new ones were made."""
    network = IPv4Network(cidr)
    kept = {name: old[name] for name in wanted if name in old and IPv4Address(old[name]) in network}
    taken = {IPv4Address(address) for address in (*old.values(), *kept.values())}
    given = dict(kept)
    for name in wanted:
        if name in given:
            continue
        address = _first_free(name, network, taken)
        if address is None:
            raise NoAddressLeft(
                f"network.cidr: {cidr} has no address left for {name} ({len(wanted)} nodes wanted). "
                f"Fix: a larger range, or fewer nodes"
            )
        taken.add(address)
        given[name] = str(address)
    return {name: given[name] for name in wanted}


def first_free(taken: Iterable[IPv4Network]) -> str | None:
    """The first /24 of the pool that overlaps nothing of `taken`."""
    used = tuple(taken)
    return next((str(c) for c in POOL.subnets(new_prefix=24) if not any(c.overlaps(u) for u in used)), None)


def holder(cidr: str, taken: Mapping[str, IPv4Network]) -> str | None:
    """The name of what already uses a part of `cidr`."""
    wanted = IPv4Network(cidr)
    return next((name for name, network in taken.items() if wanted.overlaps(network)), None)


def routes(table: str) -> dict[str, IPv4Network]:
    """Ranges that this machine reaches already, from the text of /proc/net/route; the default route is not one."""
    found = {}
    for line in table.splitlines()[1:]:
        interface, destination, *_, mask, _mtu, _window, _irtt = line.split()
        network = IPv4Network(f"{_little_endian(destination)}/{_little_endian(mask)}", strict=False)
        if network.prefixlen:
            found[f"the route to {network} on {interface}"] = network
    return found


def _first_free(name: str, network: IPv4Network, taken: set[IPv4Address]) -> IPv4Address | None:
    size = network.num_addresses
    others = (*range(_FIRST_OTHER, size - 1), *range(_GATEWAY + 1, min(_FIRST_OTHER, size - 1)))
    preferred = (_WELL_KNOWN[name], *others) if _WELL_KNOWN.get(name, size) < size - 1 else others
    reserved = {offset for other, offset in _WELL_KNOWN.items() if other != name}
    candidates = (*(o for o in preferred if o not in reserved), *(o for o in preferred if o in reserved))
    return next((network[o] for o in candidates if network[o] not in taken), None)


def _little_endian(word: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(word), "little"))
