"""NFS access: only root, and thereby the kernel's mounts, may connect to NFS servers and to the tunnels to EFS."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.cloud.at_boot import run_at_boot
from bootstrap.steps.cloud.mounts import FIRST_TUNNEL_PORT, list_filesystems, list_kinds
from bootstrap.steps.metadata import BEFORE, PACKAGE
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = (Path(__file__).parents[2] / "scripts" / "nfs-access.sh").read_text()
NFS_PORT = 2049
# The rules are loaded again before each start of slurmd, which fails without them, so that no job can run.
LOAD_BEFORE_SLURMD = "[Service]\nExecStartPre=/etc/muster/nfs-access\n"


def plan_nfs_access(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Load firewall rules that reject other users, now, at every boot, and before every start of slurmd."""
    tunnels = sum(filesystem.kind == "efs" for filesystem in list_filesystems(desired))
    ports = (NFS_PORT, *range(FIRST_TUNNEL_PORT, FIRST_TUNNEL_PORT + tunnels))
    rules = run_at_boot(
        facts,
        "nfs-access",
        "NFS servers for root only",
        SCRIPT.replace("@PORTS@", ", ".join(map(str, ports))),
        done="muster-nfs-access" in facts.active,
        before=BEFORE,
        required_for_logins=True,
        fix="compare with `nft list ruleset` on that machine, then run again",
    )
    drop_in = "/etc/systemd/system/slurmd.service.d/muster-nfs-access.conf"
    return [*(write_file(facts, drop_in, LOAD_BEFORE_SLURMD) if node.role == "compute" else []), *rules]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clusters that mount neither EFS nor NFS."""
    return "" if list_kinds(desired) & {"efs", "nfs"} else "the cluster has no NFS filesystem"


def _list_packages(node: Node) -> tuple[str, ...]:
    return (PACKAGE,)


STEP = Step(
    "nfs-access",
    "NFS servers for root only",
    plan_nfs_access,
    skip=skip,
    units=("muster-nfs-access",),
    packages=_list_packages,
)
