"""Parse the output of collect.sh into Facts."""

from __future__ import annotations

from collections import defaultdict

from bootstrap.facts.model import Disk, Facts, FileFact, Home, UserFact
from slurm.config.render import Cgroup
from slurm.control.nodes import parse_nodes
from slurm.rdma.sysfs import parse_rdma

INSTALLED = "installed"


def parse_facts(text: str) -> Facts:
    """Parse tab-separated lines, each starting with the kind of fact."""
    lines: dict[str, list[list[str]]] = defaultdict(list)
    for line in text.splitlines():
        kind, *fields = line.split("\t")
        lines[kind].append(fields)
    return Facts(
        files=_files(lines["stat"], lines["sha256"]),
        markers=dict(_select_whole(lines["marker"], 2)),
        enabled=frozenset(unit for unit, state in lines["enabled"] if state == "yes"),
        active=frozenset(unit for unit, state in lines["active"] if state == "active"),
        loaded=frozenset(unit for unit, state in lines["active"] if state not in ("inactive", "unknown")),
        packages={name: version for name, version, state in lines["package"] if state == INSTALLED},
        users={n: UserFact(int(uid), comment, home, shell) for n, uid, comment, home, shell in lines["user"]},
        homes={name: Home(int(uid), trusted == "yes") for name, uid, trusted in lines["home"]},
        cgroup=_cgroup(_first(lines["cgroup"])),
        hostname=_first(lines["hostname"]),
        container=_first(lines["container"]) == "yes",
        hosts_merged=_first(lines["hosts"]) == "merged",
        environment_complete=_first(lines["environment"]) == "complete",
        bundle=_first(lines["bundle"]),
        slurm_nodes=parse_nodes("\n".join(f[0] for f in lines["node"])) if lines["assoc"] else None,
        associations=frozenset(_association(f[0]) for f in lines["assoc"]),
        admins=frozenset(f[0].split("|")[0] for f in lines["admin"] if f[0].endswith("|Administrator")),
        job_network=_first(lines["job_network"]),
        mounts={path: kind for path, kind, _ in _select_whole(lines["mount"], 3)},
        mount_sources={path: source for path, _, source in _select_whole(lines["mount"], 3)},
        distribution=_first(lines["distribution"]),
        kernel=_first(lines["kernel"]),
        disks=tuple(Disk(*f) for f in _select_whole(lines["disk"], 3)),
        software=_software(lines["software"]),
        rdma=parse_rdma((f[0], f[1]) for f in _select_whole(lines["rdma"], 2)),
        clock=float(_first(lines["clock"]) or 0),
    )


def _select_whole(lines: list[list[str]], fields: int) -> list[list[str]]:
    """Leave out lines with another number of fields, such as those of a value that contains a tab."""
    return [line for line in lines if len(line) == fields]


def _files(stats: list[list[str]], digests: list[list[str]]) -> dict[str, FileFact]:
    sums = {path: digest for digest, path in digests}
    return {path: FileFact(sums.get(path, ""), int(mode, 8), owner) for path, mode, owner in stats}


def _software(lines: list[list[str]]) -> dict[str, str]:
    texts: dict[str, list[str]] = defaultdict(list)
    for name, *fields in lines:
        texts[name].append("\t".join(fields))
    return {name: "\n".join(rows) for name, rows in texts.items()}


def _first(lines: list[list[str]]) -> str:
    return lines[0][0] if lines and lines[0] else ""


def _cgroup(kind: str) -> Cgroup:
    return "v1" if kind == "v1" else "v2" if kind == "v2" else "none"


def _association(line: str) -> tuple[str, str, str]:
    cluster, account, user = line.split("|")
    return cluster, account, user
