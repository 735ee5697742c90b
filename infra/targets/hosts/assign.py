"""Which host is which node: roles by name, groups by pattern. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cluster import names
from cluster.inventory import Role
from infra.targets.hosts.spec import Hosts

MAX_LISTED = 8


@dataclass(frozen=True)
class Assignment:
    """A host and the node that it becomes."""

    host: str
    node: str
    role: Role
    group: str | None = None


def assign_hosts(section: Hosts) -> tuple[Assignment, ...]:
    """Return the nodes of a valid section: controller, login, then the groups by name.

    Nodes of a group are numbered in the natural order of their hosts' names: rack1-2 comes before rack1-10.
    """
    roles = [Assignment(section.controller, names.CONTROLLER, "controller")]
    if section.login:
        roles.append(Assignment(section.login, names.LOGIN, "login"))
    for group, hosts in sorted(match_groups(section).items()):
        members = zip(hosts, names.members(group, len(hosts)), strict=True)
        roles += [Assignment(host, node, "compute", group) for host, node in members]
    return tuple(roles)


def match_groups(section: Hosts) -> Mapping[str, tuple[str, ...]]:
    """Return the hosts of each group, in natural order."""
    return {group: match_hosts(described.match, section.machines) for group, described in section.groups.items()}


def match_hosts(patterns: Iterable[str], machines: Iterable[str]) -> tuple[str, ...]:
    """Return the names that match a pattern, in natural order, each once."""
    listed = tuple(patterns)
    return tuple(sorted((n for n in machines if any(fnmatchcase(n, p) for p in listed)), key=natural_order))


def list_concerned(section: Hosts, path: str) -> tuple[str, ...]:
    """Return the nodes that a field of the section affects, by its path such as `hosts.machines.head.address`."""
    _section, part, *below = path.split(".")
    if part not in ("machines", "groups", "login"):
        return ()
    name = below[0] if below else None
    return tuple(
        entry.node
        for entry in assign_hosts(section)
        if (part == "login" and entry.role == "login") or name == (entry.host if part == "machines" else entry.group)
    )


def list_claims(section: Hosts) -> Mapping[str, tuple[str, ...]]:
    """Return the properties that claim each host, by the host's name; hosts without a claim are not in it."""
    claims: dict[str, list[str]] = {section.controller: ["hosts.controller"]}
    if section.login:
        claims.setdefault(section.login, []).append("hosts.login")
    for group, hosts in match_groups(section).items():
        for host in hosts:
            claims.setdefault(host, []).append(f"hosts.groups.{group}")
    return {host: tuple(properties) for host, properties in claims.items()}


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by their value."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def format_names(names: Iterable[str]) -> str:
    """Return names of hosts or groups for a message, of many only the first."""
    listed = list(names)
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return ", ".join(listed[:MAX_LISTED]) + more
