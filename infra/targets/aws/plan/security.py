"""Security groups and their rules: which nodes and services may connect. Nothing outside the cluster may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cluster.spec import ClusterSpec

ALL = "-1"
WORLD = "0.0.0.0/0"
VPC = "vpc"
"""Stands for the address range of the VPC."""

CONTROL, COMPUTE, STORAGE, ENDPOINTS = "control", "compute", "storage", "endpoints"
DESCRIPTIONS = {
    CONTROL: "controller and login node",
    COMPUTE: "compute nodes",
    STORAGE: "shared filesystems",
    ENDPOINTS: "private endpoints of AWS services",
}

SSH, HTTP, HTTPS, NFS = (22, 22), (80, 80), (443, 443), (2049, 2049)
SLURMCTLD, SLURMD, SLURMDBD = (6817, 6817), (6818, 6818), (6819, 6819)
# srun and salloc listen on a port that Linux chooses; tasks connect back to it.
EPHEMERAL = (32768, 60999)
# docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE = ((988, 988), (1018, 1023))


@dataclass(frozen=True)
class Rule:
    """A rule for one direction; `peer` is a security group of this cluster, VPC, or an address range."""

    group: str
    direction: Literal["in", "out"]
    peer: str
    description: str
    protocol: str = "tcp"
    ports: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        what = "all" if self.ports is None else "-".join(map(str, dict.fromkeys(self.ports)))
        peer = "world" if self.peer == WORLD else self.peer
        return f"{self.group}-{self.direction}-{peer}-{what}"


def groups(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the security groups of a cluster."""
    new_storage = any(storage.kind in ("fsx-lustre", "efs") for storage in spec.storage.values())
    return (CONTROL, COMPUTE, *((STORAGE,) if new_storage else ()), *(() if spec.network.vpc_id else (ENDPOINTS,)))


def rules(spec: ClusterSpec) -> tuple[Rule, ...]:
    """Return the rules of all security groups, without duplicates."""
    every = (*_fabric(), *_slurm(), *_outside(spec), *_endpoints(spec), *_storage(spec))
    return tuple(dict.fromkeys(every))


def _fabric() -> Iterator[Rule]:
    """Yield a rule in both directions, which EFA requires even next to a rule that allows all outbound traffic.

    See docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html. Ranks connect on ports of their own choice.
    """
    yield from _between(COMPUTE, COMPUTE, "EFA and the ranks of a job among compute nodes", ALL)


def _slurm() -> Iterator[Rule]:
    yield from _between(COMPUTE, CONTROL, "slurmctld", ports=SLURMCTLD)
    yield from _between(CONTROL, CONTROL, "slurmctld", ports=SLURMCTLD)
    yield from _between(CONTROL, CONTROL, "slurmdbd", ports=SLURMDBD)
    yield from _between(CONTROL, COMPUTE, "slurmd", ports=SLURMD)
    yield from _between(CONTROL, COMPUTE, "SSH from the login node to nodes of one's own jobs", ports=SSH)
    yield from _between(CONTROL, CONTROL, "SSH between login node and controller", ports=SSH)
    yield from _between(COMPUTE, CONTROL, "tasks answer srun and salloc", ports=EPHEMERAL)
    yield from _between(CONTROL, CONTROL, "srun and salloc answer each other", ports=EPHEMERAL)


def _outside(spec: ClusterSpec) -> Iterator[Rule]:
    """Yield the outbound rules; S3 needs one too, because security groups treat its gateway endpoint as outside."""
    for group in (CONTROL, COMPUTE):
        yield Rule(group, "out", WORLD, "packages, data sets and AWS services", ports=HTTPS)
        if spec.network.egress:
            yield Rule(group, "out", WORLD, "package archives without TLS, whose contents are signed", ports=HTTP)


def _endpoints(spec: ClusterSpec) -> Iterator[Rule]:
    if spec.network.vpc_id:
        return
    for group in (CONTROL, COMPUTE):
        yield from _between(group, ENDPOINTS, "AWS services through private endpoints", ports=HTTPS)


def _storage(spec: ClusterSpec) -> Iterator[Rule]:
    for storage in spec.storage.values():
        if storage.kind == "efs":
            for group in (CONTROL, COMPUTE):
                yield from _between(group, STORAGE, "NFS", ports=NFS)
        elif storage.kind == "fsx-lustre":
            yield from _lustre(efa=storage.efa)
        elif storage.kind == "existing":
            yield from _existing()


def _lustre(*, efa: bool) -> Iterator[Rule]:
    """Yield rules in both directions, because servers and clients call each other.

    With EFA, FSx cannot be created unless all traffic between them is allowed
    (docs.aws.amazon.com/fsx/latest/LustreGuide/cannot-create-fs.html).
    """
    for ports in LUSTRE:
        yield from _between(STORAGE, STORAGE, "Lustre servers among themselves", ports=ports)
        for group in (CONTROL, COMPUTE):
            yield from _between(group, STORAGE, "Lustre clients call servers", ports=ports)
            yield from _between(STORAGE, group, "Lustre servers call clients back", ports=ports)
    if efa:
        yield from _between(STORAGE, STORAGE, "Lustre over EFA among servers", ALL)
        yield from _between(COMPUTE, STORAGE, "Lustre over EFA", ALL)
        yield from _between(STORAGE, COMPUTE, "Lustre over EFA", ALL)


def _existing() -> Iterator[Rule]:
    """Yield the cluster's side of the rules; the filesystem's own security group has to allow the same."""
    for group in (CONTROL, COMPUTE):
        for ports in (NFS, *LUSTRE):
            yield Rule(group, "out", VPC, "a filesystem that exists already", ports=ports)
        for ports in LUSTRE:
            yield Rule(group, "in", VPC, "Lustre servers of an existing filesystem call back", ports=ports)


def _between(
    source: str, to: str, why: str, protocol: str = "tcp", *, ports: tuple[int, int] | None = None
) -> Iterator[Rule]:
    """Yield the rules at both ends of a connection that `source` opens."""
    yield Rule(source, "out", to, why, protocol, ports)
    yield Rule(to, "in", source, why, protocol, ports)
