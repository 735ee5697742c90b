"""How to log in to each host of a section: its own settings, else those of the section. Pure functions."""

from __future__ import annotations

import json
from dataclasses import asdict

from bootstrap.transport.host_login import HostLogin
from infra.targets.hosts.spec import DEFAULT_PORT, DEFAULT_USER, Host, Hosts


def resolve_login(section: Hosts, name: str) -> HostLogin:
    """Return how to log in to a machine of a valid section."""
    host = section.machines[name]
    return _resolve(section, name, host, host.jump or section.jump)


def dump_login(login: HostLogin) -> str:
    """Return a login as JSON; it has the path of the private key, not the key."""
    return json.dumps(asdict(login), sort_keys=True)


def parse_login(text: str) -> HostLogin:
    """Return the login that `dump_login` has written."""
    fields = json.loads(text)
    return HostLogin(**fields | {"jump": parse_login(json.dumps(fields["jump"])) if fields["jump"] else None})


def resolve_user(section: Hosts, host: Host) -> str:
    """Return the user as whom muster logs in to a host."""
    return host.user or section.user or DEFAULT_USER


def resolve_address(host: Host) -> str:
    """Return the address by which other hosts reach a host."""
    return host.cluster_address or host.address


def find_jump_cycle(section: Hosts) -> tuple[str, ...]:
    """Return jump hosts that are reached through each other, in order; empty if every chain ends."""
    for first in section.jump_hosts:
        chain = [first]
        while (following := _next_jump(section, chain[-1])) is not None:
            if following in chain:
                return (*chain[chain.index(following) :], following)
            chain.append(following)
    return ()


def _next_jump(section: Hosts, name: str) -> str | None:
    host = section.jump_hosts.get(name)
    return host.jump if host else None


def _resolve(section: Hosts, name: str, host: Host, jump: str | None) -> HostLogin:
    return HostLogin(
        name=name,
        address=host.address,
        port=host.port or section.port or DEFAULT_PORT,
        user=resolve_user(section, host),
        identity_file=host.identity_file or section.identity_file,
        fingerprint=host.fingerprint,
        known_hosts=section.known_hosts,
        trust_first_use=section.trust_first_use,
        # A jump host is reached directly unless it names another: the section's `jump` would lead to itself.
        jump=_resolve(section, jump, section.jump_hosts[jump], section.jump_hosts[jump].jump) if jump else None,
    )
