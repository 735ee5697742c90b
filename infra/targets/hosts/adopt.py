"""Adopt and release a host over SSH, with the operator's own login.

Adopting writes the claim and the journal (bootstrap/changes.py) and lets the cluster's key log in as root; from then on
bootstrap reaches the host like every other node. Releasing runs the journal's `restore`: the claim and everything else
of muster is removed, and what was there before is there again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bootstrap.action import MARKERS, Action, join_actions, record_changes, write_file
from bootstrap.changes import JOURNAL, RECORD, SCRIPT, Restoration, parse_restorations
from bootstrap.facts.model import Facts
from bootstrap.steps.ssh import KEYS, SSHD, plan_sshd
from bootstrap.transport.base import Completed, Transport, TransportError
from bootstrap.transport.host_connection import HostConnections
from bootstrap.transport.host_login import HostLogin
from infra.resources.error import ResourceError
from infra.targets.hosts.claim import GIVEN_BACK, PATH, Claim, ClaimError, check_claim, parse_claim

# apt waits 5 minutes for another program, and a package that is removed may stop daemons that take a minute to end.
RESTORE_TIMEOUT_S = 900.0
_TAKEN = 4
# `ln` fails if the file exists, so that of two operators only one gets the host.
_CLAIM = f"""set -eu
umask 022
if [ ! -e {PATH} ] && [ -e /etc/muster ]; then exit {_TAKEN}; fi
mkdir -p {RECORD}
new=$(mktemp {RECORD}/claim.XXXXXX)
trap 'rm -f "$new"' EXIT
cat >"$new"
chmod 644 "$new"
ln -T "$new" {PATH} 2>/dev/null || test -e {PATH}
cat {PATH}
"""
_FACTS = """cat /proc/sys/kernel/hostname
getconf _NPROCESSORS_ONLN
awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo
"""
_RESTORE = f"""set -eu
if [ -x {JOURNAL} ]; then {JOURNAL} restore; fi
rm -rf {MARKERS}
"""


@dataclass(frozen=True)
class HostFacts:
    """What a cluster needs to know about an adopted host."""

    claim: Claim
    address: str
    """IPv4 address by which it was reached."""
    host_key: str
    hostname: str
    cpus: int
    memory_mb: int


def adopt_host(login: HostLogin, claim: Claim, public_key: str) -> HostFacts:
    """Claim a host and let the cluster's key log in; raise ResourceError if it belongs to somebody else.

    A host that belongs to this cluster already keeps its first claim and its journal.
    """
    with _connect(login) as (transport, host_key):
        owner = _claim(login, transport, claim)
        _put_journal(login, transport)
        script, data = join_actions(map(record_changes, _admit(public_key)))
        _require(login, transport.run(script, stdin=data))
        hostname, cpus, memory_mb = _require(login, transport.run(_FACTS)).out.split()
    return HostFacts(owner, _resolve(login), host_key, hostname, int(cpus), int(memory_mb))


def read_claim(login: HostLogin) -> Claim | None:
    """Return the claim on a host; None if it has none. Raise TransportError if it does not say."""
    with _open(login) as (transport, _host_key):
        return _read_claim(login, transport)


def release_host(login: HostLogin, claim_id: str | None = None) -> tuple[Restoration, ...]:
    """Restore a host and return what became of each subject; nothing if it has another claim than `claim_id`, or none.

    A host that was installed again, or that another cluster has adopted since, is not touched.
    """
    with _connect(login) as (transport, _host_key):
        claim = _read_claim(login, transport)
        if claim is None or (claim_id is not None and claim.id != claim_id):
            return ()
        done = _require(login, transport.run(_RESTORE, timeout=RESTORE_TIMEOUT_S))
    return tuple(parse_restorations(done.out))


def _read_claim(login: HostLogin, transport: Transport) -> Claim | None:
    """Return the claim, None only if the host certainly has none: such a host is forgotten."""
    done = transport.run(f"if [ -e {PATH} ]; then cat {PATH}; fi")
    if done.code != 0:
        last = (done.err.strip().splitlines() or [f"exit code {done.code}"])[-1]
        fix = "allow the user `NOPASSWD: ALL` in a file in /etc/sudoers.d, then run it again"
        raise TransportError(login.name, f"{PATH} cannot be read as root: {last}", fix)
    try:
        return parse_claim(done.out)
    except ClaimError as error:
        fix = f"put the file back, or run `{JOURNAL} restore` on the host and remove {MARKERS}"
        raise TransportError(login.name, str(error), fix) from None


def _claim(login: HostLogin, transport: Transport, claim: Claim) -> Claim:
    done = transport.run(_CLAIM, stdin=claim.render().encode())
    if done.code == _TAKEN:
        what = "is or was a node of a muster cluster (/etc/muster exists), but has no claim"
        fix = f"remove that cluster where it was created; {GIVEN_BACK}"
        raise ResourceError(f"hosts.machines.{login.name}", what, fix)
    try:
        existing = parse_claim(_require(login, done).out)
    except ClaimError:
        existing = None
    if existing is None:
        raise ResourceError(f"hosts.machines.{login.name}", f"{PATH} cannot be read", "leave the host out")
    check_claim(login.name, existing, claim)
    return existing


def _put_journal(login: HostLogin, transport: Transport) -> None:
    try:
        transport.put(JOURNAL, SCRIPT.encode(), 0o700)
    except TransportError as error:
        raise _explain(login, error) from None


def _admit(public_key: str) -> list[Action]:
    """Return the actions that let the cluster's key log in as root, as step `ssh` of bootstrap does for all users."""
    return [*write_file(Facts(), f"{KEYS}/root", f"{public_key}\n"), *plan_sshd(Facts(), SSHD)]


def _require(login: HostLogin, done: Completed) -> Completed:
    if done.code != 0:
        last = (done.err.strip().splitlines() or [f"exit code {done.code}"])[-1]
        fix = "log in as the same user, remove the cause, then run it again"
        raise ResourceError(f"hosts.machines.{login.name}", f"a script failed as root: {last}", fix)
    return done


@contextmanager
def _connect(login: HostLogin) -> Iterator[tuple[Transport, str]]:
    """Connect as root for the block; raise ResourceError."""
    try:
        with _open(login) as opened:
            yield opened
    except TransportError as error:
        raise _explain(login, error) from None


@contextmanager
def _open(login: HostLogin) -> Iterator[tuple[Transport, str]]:
    connections = HostConnections()
    try:
        with connections.open(login, as_root=True) as connection:
            yield connection.transport, connection.host_key
    finally:
        connections.close()


def _resolve(login: HostLogin) -> str:
    try:
        return socket.gethostbyname(login.address)
    except OSError as error:
        fix = "write its IPv4 address"
        raise ResourceError(f"hosts.machines.{login.name}.address", f"'{login.address}': {error}", fix) from None


def _explain(login: HostLogin, error: TransportError) -> ResourceError:
    return ResourceError(f"hosts.machines.{login.name}", error.line, error.fix or "run it again")
