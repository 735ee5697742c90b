"""Mounts: the shared filesystems (Lustre, EFS, NFS), mounted before any daemon starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bootstrap.action import Action, enable_unit, reload_units, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud.at_boot import run_at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Filesystem, Node

SCRIPT = (Path(__file__).parents[2] / "scripts" / "mounts.sh").read_text()
MOUNT_TIMEOUT_S = 900.0
NFS_OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"

LUSTRE_OPTIONS = "noatime,flock,lazystatfs"
LUSTRE_TUNING = tuple(
    f"lctl set_param -n {setting} || true"
    for setting in (
        "osc.*.max_rpcs_in_flight=64",
        "osc.*.max_dirty_mb=256",
        "osc.*.max_pages_per_rpc=1024",
        "mdc.*.max_rpcs_in_flight=64",
        "mdc.*.max_mod_rpcs_in_flight=50",
        "llite.*.max_read_ahead_mb=256",
        "llite.*.statahead_max=512",
    )
)

# EFS traffic is encrypted by one stunnel per filesystem, because Ubuntu has no package of Amazon's mount helper.
FIRST_TUNNEL_PORT = 20490
TUNNEL_CONF = """\
foreground = yes
pid =
[efs]
client = yes
accept = 127.0.0.1:{port}
connect = {host}:2049
sslVersionMin = TLSv1.2
verifyChain = yes
CAfile = /etc/ssl/certs/ca-certificates.crt
checkHost = {host}
TIMEOUTbusy = 20
TIMEOUTclose = 0
"""
TUNNEL_UNIT = """\
[Unit]
Description=TLS to {host}
After=network-online.target
Before=muster-mounts.service

[Service]
ExecStart=/usr/bin/stunnel /etc/muster/efs-{number}.conf
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


def plan_mounts(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start the TLS tunnels, and mount everything, now and at every boot."""
    filesystems = list_filesystems(desired)
    tunnels = [filesystem for filesystem in filesystems if filesystem.kind == "efs"]
    todo: list[Action] = []
    for number, filesystem in enumerate(tunnels):
        todo += _plan_tunnel(facts, filesystem, number)
    lines = [line for filesystem in filesystems for line in _mount_lines(filesystem, tunnels, node)]
    return todo + run_at_boot(
        facts,
        "mounts",
        "Shared filesystems",
        SCRIPT.replace("@MOUNTS@", "\n".join(lines)),
        done=all(filesystem.mount in facts.mounts for filesystem in filesystems),
        after="network-online.target",
        timeout=MOUNT_TIMEOUT_S,
        fix="check the filesystem's state and the security group between it and the nodes",
    )


def list_filesystems(desired: Desired) -> tuple[Filesystem, ...]:
    """Return the filesystems that nodes mount."""
    return desired.cloud.filesystems if desired.cloud else ()


def list_kinds(desired: Desired) -> set[str]:
    """Return the kinds of the filesystems that nodes mount."""
    return {filesystem.kind for filesystem in list_filesystems(desired)}


def list_clients(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that mounting needs, apart from Lustre's, which belong to a kernel."""
    kinds = set(kinds)
    return (*(("nfs-common",) if kinds & {"efs", "nfs"} else ()), *(("stunnel4",) if "efs" in kinds else ()))


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters without a filesystem to mount."""
    filesystems = list_filesystems(desired)
    lustre = any(filesystem.kind == "lustre" for filesystem in filesystems)
    if not filesystems:
        return "the cluster has no shared filesystem to mount"
    if all(filesystem.mount in facts.mounts for filesystem in filesystems) and not lustre:
        return "already mounted" if "/etc/muster/mounts" not in facts.files else ""
    return ""


def _mount_lines(filesystem: Filesystem, tunnels: list[Filesystem], node: Node) -> list[str]:
    """Return the calls of mounts.sh's functions that mount one filesystem."""
    mount = filesystem.mount
    if filesystem.kind == "lustre":
        efa = ["use_efa"] if filesystem.efa and node.fabric == "efa" else []
        source = f"{filesystem.host}@tcp:/{filesystem.export}"
        return [*efa, f"attach lustre {LUSTRE_OPTIONS} {source} {mount}", *LUSTRE_TUNING]
    if filesystem.kind == "efs":
        port = FIRST_TUNNEL_PORT + tunnels.index(filesystem)
        return [
            f"mountpoint -q {mount} || await_tunnel {port}",
            f"attach nfs4 {NFS_OPTIONS},port={port} 127.0.0.1:{filesystem.export or '/'} {mount}",
        ]
    return [f"attach nfs4 {NFS_OPTIONS} {filesystem.host}:{filesystem.export or '/'} {mount}"]


def _plan_tunnel(facts: Facts, filesystem: Filesystem, number: int) -> list[Action]:
    unit, port = f"muster-efs-{number}", FIRST_TUNNEL_PORT + number
    unit_text = TUNNEL_UNIT.format(host=filesystem.host, number=number)
    todo = [
        *write_file(facts, f"/etc/muster/efs-{number}.conf", TUNNEL_CONF.format(host=filesystem.host, port=port)),
        *write_file(facts, f"/etc/systemd/system/{unit}.service", unit_text),
    ]
    if todo:
        start = f"{enable_unit(unit)}\n{reload_units(facts, f'{unit}.service')}systemctl restart {unit}"
        todo.append(Action(f"start {unit}", start, log=f"journalctl -u {unit}"))
    return todo


def _list_packages(node: Node) -> tuple[str, ...]:
    return ("nfs-common", "stunnel4")


STEP = Step("mounts", "shared filesystems", plan_mounts, skip=skip, units=("muster-mounts",), packages=_list_packages)
