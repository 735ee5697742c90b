"""mounts: the shared filesystems, mounted before any daemon starts; clients that fit the kernel, traffic encrypted."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps import efs, lustre
from bootstrap.steps.at_boot import at_boot
from bootstrap.steps.step import Step
from cluster.inventory import Filesystem, Node

SCRIPT = (Path(__file__).parent.parent / "scripts" / "mounts.sh").read_text()
MOUNT_S = 900.0
INSTALL_S = 900.0
NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    found = _filesystems(desired)
    kinds = {one.kind for one in found}
    todo: list[Action] = []
    if "lustre" in kinds:
        todo += lustre.client(facts, node)
    nfs = [name for name in ("nfs-common",) if kinds & {"efs", "nfs"} and name not in facts.packages]
    tls = [name for name in ("stunnel4",) if "efs" in kinds and name not in facts.packages]
    if nfs or tls:
        todo.append(install(*nfs, *tls))
    for number, one in enumerate(_of(found, "efs")):
        todo += efs.tunnel(facts, one, number)
    lines = [line for one in found for line in _lines(one, _of(found, "efs"), node)]
    done = all(one.mount in facts.mounts for one in found)
    fix = "look at the filesystem's state and at the security group between it and the nodes"
    script = SCRIPT.replace("@MOUNTS@", "\n".join(lines))
    after = "network-online.target"
    title = "Shared filesystems"
    return todo + at_boot(facts, "mounts", title, script, done=done, after=after, timeout=MOUNT_S, fix=fix)


def install(*names: str) -> Action:
    listed = " ".join(names)
    script = (
        "export DEBIAN_FRONTEND=noninteractive\n"
        f"apt-get -q update && apt-get -q install -y --no-install-recommends {listed}"
    )
    fix = "give the node a way to its package mirror (network.egress), or an image that has the packages"
    return Action(f"install {listed}", script, timeout=INSTALL_S, log="/var/log/apt/term.log", fix=fix, slow=True)


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    found = _filesystems(desired)
    if not found:
        return "the cluster has no shared filesystem to mount"
    if all(one.mount in facts.mounts for one in found) and not any(one.kind == "lustre" for one in found):
        return "mounted already" if "/etc/muster/mounts" not in facts.files else ""
    if any(one.kind == "lustre" for one in found) and not facts.distribution.startswith("ubuntu"):
        line = f"there is no Lustre client for {facts.distribution or 'this distribution'}"
        raise BootstrapError(node.name, STEP.name, line, fix="use the default image (Ubuntu 22.04), or another storage")
    return ""


def _filesystems(desired: Desired) -> tuple[Filesystem, ...]:
    return desired.cloud.filesystems if desired.cloud else ()


def _of(found: tuple[Filesystem, ...], kind: str) -> list[Filesystem]:
    return [one for one in found if one.kind == kind]


def _lines(one: Filesystem, tunnels: list[Filesystem], node: Node) -> list[str]:
    if one.kind == "lustre":
        efa = ["use_efa"] if one.efa and node.fabric == "efa" else []
        return [*efa, f"attach lustre {lustre.OPTIONS} {one.host}@tcp:/{one.export} {one.mount}", *lustre.TUNING]
    if one.kind == "efs":
        port = efs.port(tunnels.index(one))
        return [f"attach nfs4 {NFS},port={port} 127.0.0.1:{one.export or '/'} {one.mount}"]
    return [f"attach nfs4 {NFS} {one.host}:{one.export or '/'} {one.mount}"]


STEP = Step("mounts", "shared filesystems", actions, skip=skip)
