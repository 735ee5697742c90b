"""The rules on specs that rented machines share; each takes the name of the target's section. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.rented.section import MachineSection

ANYWHERE = "0.0.0.0/0"


def check_section(
    spec: ClusterSpec, name: str, section: MachineSection[object], example: str, max_prefix: int
) -> Iterator[Issue]:
    """Yield the issues of what all such sections have, and of the network.

    `example` describes the machine of a group; the range of the network has at most `max_prefix` fixed bits.
    """
    yield from check_groups(spec, name, section.groups, example)
    yield from check_ssh_from(name, section.ssh_from)
    yield from check_network(spec, name, max_prefix)


def check_groups(spec: ClusterSpec, section: str, groups: Collection[str], example: str) -> Iterator[Issue]:
    """Require a machine for each node group, and none for groups that do not exist."""
    for name in groups:
        if name not in spec.groups:
            near = get_close_matches(name, spec.groups, n=1)
            fix = f"rename it to `{near[0]}`" if near else f"add it under `groups:`, for example `{name}: {{count: 2}}`"
            message = f"'{name}' is not a node group; allowed: {', '.join(spec.groups)}"
            yield error("no_such_group", f"{section}.groups.{name}", message, fix)
    for name in spec.groups:
        if name not in groups:
            fix = f"add `{name}: {example}` under `{section}.groups`"
            yield error("no_such_group", f"{section}.groups", f"node group '{name}' has no machine", fix)


def check_ssh_from(section: str, ranges: Sequence[str]) -> Iterator[Issue]:
    """Refuse values that are no address range, and warn about SSH that is open to all."""
    for number, cidr in enumerate(ranges):
        where = f"{section}.ssh_from[{number}]"
        try:
            IPv4Network(cidr)
        except ValueError as invalid:
            fix = "write for example 203.0.113.7/32, your public address and /32"
            yield error("ssh_from", where, f"'{cidr}' is not an IPv4 address range: {invalid}", fix)
        else:
            if cidr == ANYWHERE:
                message = f"'{cidr}' lets everybody connect to SSH; only the keys protect the machines"
                yield warning("ssh_open", where, message, "write the address ranges of those who log in")


def check_network(spec: ClusterSpec, section: str, max_prefix: int) -> Iterator[Issue]:
    """Refuse settings of the network that rented machines do not have, and ranges that are too small."""
    code = f"{section}_network"
    if not spec.network.egress:
        message = "false is not possible: bootstrap installs packages from the internet"
        yield error(code, "network.egress", message, "remove it")
    if spec.login.ssh_port is not None:
        message = f"{spec.login.ssh_port} cannot be published: the login node has its own address"
        yield error(code, "login.ssh_port", message, "remove it, and connect to its address")
    if spec.network.cidr is not None:
        try:
            length = IPv4Network(spec.network.cidr).prefixlen
        except ValueError:
            return  # a rule for all targets reports it
        if length > max_prefix:
            message = f"'{spec.network.cidr}' is too small; allowed: /16 to /{max_prefix}"
            yield error(code, "network.cidr", message, f"write a range of at least /{max_prefix}")
