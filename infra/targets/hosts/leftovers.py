"""The hosts that a cluster still claims, for receipts and if the state file is lost; a host itself says who has it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bootstrap.transport.base import TransportError
from bootstrap.transport.host_login import HostLogin
from cluster import names
from cluster.spec.issue import SpecError
from infra.home import Home, StackHome
from infra.resources.error import ResourceError
from infra.targets.hosts.adopt import read_claim, release_host
from infra.targets.hosts.claim import Claim
from infra.targets.hosts.login import parse_login, resolve_login
from infra.targets.hosts.receipts import save_receipt
from infra.targets.hosts.spec import hosts_section
from infra.targets.registry import read_spec
from infra.targets.target import Deployment, Leftover, Leftovers

HOSTS_AT_ONCE = 16
KIND = "host"
_HOST_RESOURCE = "muster:Host"


def find_leftovers(deployment: Deployment) -> Leftovers:
    """Ask every host of a stack whether it belongs to the cluster; a host that does not answer may do so."""
    home = Home.of(os.environ)
    logins = find_logins(home.stack(deployment.stack))
    label = names.home_labels(home.root)[names.HOME]
    with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
        answers = dict(zip(logins, pool.map(_ask, logins.values()), strict=True))
    claimed = [
        Leftover(KIND, host, claim.created, claim.stack, claim.home, is_node=True)
        for host, claim in answers.items()
        if isinstance(claim, Claim) and claim.is_of(deployment.cluster, deployment.stack, label)
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
    return _read_file(stack) | read_state(stack.state)


def read_state(state: Path) -> dict[str, HostLogin]:
    """Return the logins of the hosts in a Pulumi state; nothing if it cannot be read."""
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"].get("resources") or []
        hosts = [entry["outputs"] for entry in resources if entry.get("type", "").endswith(_HOST_RESOURCE)]
        return {host["host"]: parse_login(host["login"]) for host in hosts}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


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
