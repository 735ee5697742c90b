"""The hosts that a cluster still claims, for receipts and if the state file is lost; a host itself says who has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from bootstrap.transport.base import TransportError
from bootstrap.transport.host_login import HostLogin
from cluster.spec.issue import SpecError
from infra.home import Home, StackHome
from infra.resources.error import ResourceError
from infra.targets.hosts.adopt import read_claim, release_host
from infra.targets.hosts.claim import Claim
from infra.targets.hosts.login import resolve_login
from infra.targets.hosts.receipts import save_receipt
from infra.targets.hosts.spec import hosts_section
from infra.targets.hosts.state import identify_owner, read_logins
from infra.targets.registry import read_spec
from infra.targets.target import Deployment, Leftover, Leftovers

HOSTS_AT_ONCE = 16
KIND = "host"


def find_leftovers(deployment: Deployment) -> Leftovers:
    """Ask every host of a stack whether it belongs to the cluster; a host that does not answer may do so."""
    home = Home.of(os.environ)
    stack = home.stack(deployment.stack)
    logins = find_logins(stack)
    owner = identify_owner(deployment.cluster, stack)
    with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
        answers = dict(zip(logins, pool.map(_ask, logins.values()), strict=True))
    claimed = [
        Leftover(KIND, host, claim.created, claim.stack, claim.home, is_node=True)
        for host, claim in answers.items()
        if isinstance(claim, Claim) and claim.is_of(owner)
    ]
    silent = {host: error for host, error in answers.items() if isinstance(error, TransportError)}
    unseen = tuple(f"host {host}: {error.line}" for host, error in silent.items())
    return Leftovers(claimed, unseen, frozenset({KIND}) if silent else frozenset())


def release_leftover(leftover: Leftover) -> None:
    """Release a host that Pulumi's state does not have."""
    home = Home.of(os.environ)
    login = find_logins(home.stack(leftover.stack)).get(leftover.name)
    if login is None:
        fix = "add it to the stack file again"
        raise ResourceError(f"hosts.machines.{leftover.name}", "its login is not in the stack file", fix)
    save_receipt(home, leftover.stack, leftover.name, release_host(login))


def find_logins(stack: StackHome) -> Mapping[str, HostLogin]:
    """Return the logins of all hosts that a stack has or may have, by name: those in its state, then in its file."""
    return _read_file(stack) | read_logins(stack.state)


def _read_file(stack: StackHome) -> dict[str, HostLogin]:
    try:
        section = hosts_section(read_spec(stack.file))
    except SpecError:
        return {}
    return {host: resolve_login(section, host) for host in section.machines} if section else {}


def _ask(login: HostLogin) -> Claim | TransportError | None:
    try:
        return read_claim(login)
    except TransportError as error:
        return error
