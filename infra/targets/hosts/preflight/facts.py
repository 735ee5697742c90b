"""The facts of a host as plain data, and how they are read from the output of facts.sh."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from slurm.rdma.sysfs import RdmaFacts, parse_rdma, render_reader

SCRIPT = (Path(__file__).parent / "facts.sh").read_text()
PeerResult = Literal["open", "closed", "silent", "unreachable", "unresolved"]


@dataclass(frozen=True)
class Peer:
    """A connection that one host tries to make to another."""

    host: str
    address: str
    port: int


@dataclass(frozen=True)
class Probe:
    """The parameters of the facts script."""

    mounts: tuple[str, ...] = ()
    users: Mapping[str, int] = field(default_factory=dict)
    """Uids of the spec's users."""
    names: tuple[str, ...] = ()
    """Names that the cluster gives its nodes."""
    peers: tuple[Peer, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders whose free space matters."""
    neighbors: Literal["", "subnet", "lldp"] = ""
    """Which tool to ask about switches: ibnetdiscover about the whole subnet, or lldpctl about the host's own ports."""


@dataclass(frozen=True)
class Mount:
    """A mounted filesystem."""

    source: str
    kind: str
    read_only: bool


@dataclass(frozen=True)
class MachineFacts:
    """Everything that the pre-flight knows about a host."""

    os: str = ""
    """Id and version of the distribution, e.g. `debian 13`."""
    os_title: str = ""
    arch: str = ""
    init: str = ""
    """Name of process 1."""
    hostname: str = ""
    machine: tuple[str, ...] = ()
    """Identifies the running machine, whatever address it was reached by."""
    cpus: int = 0
    memory_mb: int = 0
    python: str = ""
    """Version of python3; empty if there is none."""
    root: bool = False
    """Whether the user is root or becomes root without a password."""
    root_error: str = ""
    free_mb: Mapping[str, int] = field(default_factory=dict)
    """Free space by path."""
    active: frozenset[str] = frozenset()
    """Active systemd units, of those that matter."""
    files: frozenset[str] = frozenset()
    """Files of an earlier Slurm."""
    slurm: str = ""
    """Version of an installed Slurm; empty if there is none."""
    sshd_includes: bool = True
    """Whether sshd reads the files in /etc/ssh/sshd_config.d."""
    muster: bool = False
    """Whether the host is or was a node of a cluster of ours."""
    claim: str = ""
    """The file that says which cluster has adopted the host; empty if there is none."""
    filters: frozenset[str] = frozenset()
    """Packet filters whose rules drop what they do not allow."""
    ports: frozenset[int] = frozenset()
    """TCP ports with a listening server."""
    accounts: frozenset[tuple[str, int, str]] = frozenset()
    """Names, uids and comments of existing accounts that have a name or a uid of the spec's users."""
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    hanging: frozenset[str] = frozenset()
    """Mount points that do not answer."""
    nfs: bool = False
    """Whether the kernel can mount NFS."""
    gpus: int = 0
    """NVIDIA GPUs on the PCI bus."""
    gpu_models: tuple[str, ...] = ()
    """Models of the GPUs that the driver has taken."""
    driver: str = ""
    """The driver's own line about its version; empty if it is not loaded."""
    modules: frozenset[str] = frozenset()
    rdma: RdmaFacts = field(default_factory=RdmaFacts)
    subnet: str = ""
    """What ibnetdiscover prints about each subnet that the host is in; empty if it was not asked, or failed."""
    lldp: str = ""
    """What `lldpctl -f json` prints; empty if it was not asked, or failed."""
    neighbors_error: str = ""
    """Why the tool that was asked about switches did not answer."""
    resolved: Mapping[str, str] = field(default_factory=dict)
    """Addresses of names that the cluster will use, as the host resolves them now."""
    peers: Mapping[Peer, PeerResult] = field(default_factory=dict)
    clock: float = 0.0
    """The host's time when the script began, in seconds since the epoch."""
    clock_at_end: float = 0.0


class FactsError(ValueError):
    """The output of the facts script is incomplete or not what it should print."""


def render_script(probe: Probe) -> str:
    """Return the script with its parameters, and with the function that reads RDMA ports."""
    values = {
        "MOUNTS": " ".join(probe.mounts),
        "ACCOUNTS": " ".join(f"{name} {uid}" for name, uid in probe.users.items()),
        "FOLDERS": " ".join(probe.folders),
        "NAMES": " ".join(probe.names),
        "NEIGHBORS": probe.neighbors,
        "PEERS": "\n".join(f"{peer.host} {peer.address} {peer.port}" for peer in probe.peers),
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return assignments + render_reader(gids=True) + SCRIPT


def parse_facts(output: str) -> MachineFacts:
    """Return the facts in the script's output; raise FactsError."""
    # A login script of the user may print lines of its own.
    written = [line for line in output.splitlines() if line.startswith('["')]
    try:
        rows = _Rows([[str(text) for text in json.loads(line)] for line in written])
        if not rows.has("end"):
            raise FactsError("the answer ends early")
        return _build(rows)
    except (ValueError, IndexError) as error:
        raise error if isinstance(error, FactsError) else FactsError(f"unexpected answer ({error})") from None


class _Rows:
    """The lines of the output by their first text."""

    def __init__(self, rows: Iterable[list[str]]) -> None:
        self._rows: dict[str, list[list[str]]] = {}
        for key, *values in rows:
            self._rows.setdefault(key, []).append(values)

    def has(self, key: str) -> bool:
        return key in self._rows

    def all(self, key: str) -> list[list[str]]:
        return self._rows.get(key, [])

    def firsts(self, key: str) -> frozenset[str]:
        return frozenset(values[0] for values in self.all(key))

    def first(self, key: str, place: int = 0) -> str:
        lines = self.all(key)
        return lines[0][place] if lines else ""


def _build(rows: _Rows) -> MachineFacts:
    return MachineFacts(
        os=f"{rows.first('os')} {rows.first('os', 1)}".strip(),
        os_title=rows.first("os", 2),
        arch=rows.first("arch"),
        init=rows.first("init"),
        hostname=rows.first("hostname"),
        machine=tuple(next(iter(rows.all("machine")), ())),
        cpus=int(rows.first("cpus") or 0),
        memory_mb=int(rows.first("memory_mb") or 0),
        python=rows.first("python"),
        root=rows.first("root") == "yes",
        root_error=rows.first("root", 1),
        free_mb={path: int(free) for path, free in rows.all("disk")},
        active=rows.firsts("active"),
        files=rows.firsts("file"),
        slurm=rows.first("slurm"),
        sshd_includes=not rows.has("no_include"),
        muster=rows.has("muster"),
        claim=rows.first("claim"),
        filters=rows.firsts("filter"),
        ports=frozenset(int(port, 16) for port in rows.firsts("listens")),
        accounts=frozenset((name, int(uid), comment) for _account, name, uid, comment in rows.all("account")),
        mounts={path: Mount(source, kind, mode == "ro") for path, source, kind, mode in rows.all("mount")},
        hanging=rows.firsts("hangs"),
        nfs=rows.has("nfs"),
        gpus=len(rows.all("gpu")),
        gpu_models=tuple(values[0] for values in rows.all("gpu_model")),
        driver=rows.first("driver"),
        modules=rows.firsts("module"),
        rdma=parse_rdma((file, value) for file, value in rows.all("rdma")),
        subnet="\n".join("\t".join(line) for line in rows.all("subnet")),
        lldp="\n".join("\t".join(line) for line in rows.all("lldp")),
        neighbors_error=rows.first("neighbors_error"),
        resolved={name: address for name, address, *_ in rows.all("resolves")},
        peers={Peer(host, address, int(port)): _parse_result(r) for host, address, port, r in rows.all("peer")},
        clock=float(rows.first("clock") or 0),
        clock_at_end=float(rows.first("clock_at_end") or 0),
    )


def _parse_result(text: str) -> PeerResult:
    for result in get_args(PeerResult):
        if text == result:
            return cast("PeerResult", text)
    raise FactsError(f"unexpected result of a connection: {text!r}")
