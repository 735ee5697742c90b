"""A small valid spec of a cluster of hosts, and facts of a machine that has nothing to complain about."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import Assignment, assign_hosts
from infra.targets.hosts.preflight.facts import MachineFacts, Mount
from infra.targets.hosts.preflight.judge import Subject
from infra.targets.hosts.spec import Hosts, hosts_section
from infra.targets.registry import load_spec

FINGERPRINT = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
NOW = 1_800_000_000.0

VALID: dict[str, Any] = {
    "name": "rack",
    "target": "hosts",
    "groups": {"gpu": {"count": 2}},
    "login": {"enabled": False},
    "storage": {"shared": {"kind": "existing"}},
    "hosts": {
        "machines": {
            "head": {"address": "10.0.0.10", "fingerprint": FINGERPRINT},
            "rack1-1": {"address": "10.0.0.11", "fingerprint": FINGERPRINT},
            "rack1-2": {"address": "10.0.0.12", "fingerprint": FINGERPRINT},
        },
        "controller": "head",
        "groups": {"gpu": {"match": ["rack1-*"]}},
    },
}

CALM = MachineFacts(
    os="debian 13",
    os_title="Debian GNU/Linux 13 (trixie)",
    arch="x86_64",
    init="systemd",
    hostname="node",
    cpus=64,
    memory_mb=524_288,
    python="3.13.5",
    slurm="26.05.5",
    root=True,
    free_mb={"/": 100_000, "/shared": 900_000},
    mounts={"/shared": Mount("nas:/export", "nfs4", read_only=False)},
    clock=NOW,
    clock_at_end=NOW,
)


def changed(*path: str, value: Any = None, **spec: Any) -> dict[str, Any]:
    """Return the valid spec with one value set, or removed if it is None; `spec` replaces whole sections."""
    data = deepcopy(VALID) | spec
    if path:
        *parents, last = path
        part = data
        for key in parents:
            part = part.setdefault(key, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return data


def load(data: dict[str, Any] | None = None) -> ClusterSpec:
    return load_spec(data or VALID)


def section_of(spec: ClusterSpec) -> Hosts:
    section = hosts_section(spec)
    assert section is not None
    return section


def assigned_to(spec: ClusterSpec, host: str) -> Assignment:
    return next(entry for entry in assign_hosts(section_of(spec)) if entry.host == host)


def subject(host: str = "rack1-1", data: dict[str, Any] | None = None, **facts: Any) -> Subject:
    """Return a host with calm facts, except those that are given."""
    spec = load(data)
    return Subject(spec, assigned_to(spec, host), replace(CALM, **facts), NOW - 1, NOW + 1)
