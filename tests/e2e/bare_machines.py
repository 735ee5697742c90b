"""Machines that somebody owns: containers that boot systemd from the node image and run sshd, and what is on them.

MUSTER_TEST_SLURM chooses another release of Slurm than the default. MUSTER_TEST_HOSTS_IMAGE names another image, for
example one of Debian 13 without Slurm, on which bootstrap installs packages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from cluster import names
from cluster.spec.model import Software
from infra.targets.local.upgrade import ContainerTransport, MachineArgs, open_machine

SLURM = os.environ.get("MUSTER_TEST_SLURM") or Software().slurm
# sshd of the image has no keys yet, and no user but root.
PREPARE = """set -e
ssh-keygen -q -A >/dev/null
useradd -m -s /bin/sh ops
echo 'ops ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ops
install -d -m 700 -o ops -g ops /home/ops/.ssh
echo '{key}' >/home/ops/.ssh/authorized_keys
echo 'Banner /etc/issue.net' >/etc/ssh/sshd_config.d/90-owner.conf
systemctl restart ssh
ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub | cut -d ' ' -f 2
"""
# Files by path (mode, owner, content), packages, units, rules of the packet filter and the host name. Left out are
# logs, caches, what does not outlive a restart, and what dpkg and apt keep about earlier installations.
SNAPSHOT = """python3 - <<'PYTHON'
import hashlib, json, os, shutil, stat, subprocess
IGNORED = {"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/shared", "/var/lib/systemd"}
IGNORED |= {"/var/lib/apt/lists", "/var/lib/dpkg/status-old"}
seen = {}
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in IGNORED and name != "__pycache__"]
    for name in folders + files:
        path = os.path.join(folder, name)
        if path in IGNORED:
            continue
        facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(facts.st_mode):
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
        else:
            content = ""
        seen["file " + path] = f"{facts.st_mode:o} {facts.st_uid}:{facts.st_gid} {content}"
def run(*command):
    if shutil.which(command[0]) is None:
        return []
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
for line in run("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\\n"):
    seen["package " + line] = ""
for line in run("systemctl", "list-units", "--type=service", "--state=active", "--no-legend", "--plain"):
    # Those of sessions come and go with logins.
    if not line.startswith(("user@", "user-runtime-dir@")):
        seen["active " + line.split()[0]] = ""
for line in run("systemctl", "list-unit-files", "--no-legend", "--plain"):
    seen["unit " + line.split()[0]] = line.split()[1]
for line in run("nft", "list", "tables"):
    seen["filter " + line] = ""
seen["hostname"] = os.uname().nodename
print(json.dumps(seen))
PYTHON
"""


@dataclass(frozen=True)
class BareMachines:
    """Machines by name, and how a spec describes them."""

    roots: Mapping[str, ContainerTransport]
    described: Mapping[str, dict[str, Any]]

    def run(self, host: str, script: str) -> str:
        """Run a script as root, not over SSH."""
        done = self.roots[host].run(script, timeout=120)
        assert done.code == 0, done.err
        return done.out

    def snapshot(self, host: str) -> dict[str, str]:
        """Return what is on a machine."""
        seen: dict[str, str] = json.loads(self.run(host, SNAPSHOT))
        return seen


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return what differs between two snapshots, before and after."""
    return {
        key: (before.get(key), after.get(key)) for key in sorted({*before, *after}) if before.get(key) != after.get(key)
    }


@contextmanager
def open_machines(
    cluster: str, hosts: Sequence[str], public_key: str, mounts: Mapping[str, tuple[Mapping[str, str | bool], ...]]
) -> Iterator[BareMachines]:
    """Start machines that a key of user `ops` can log in to; remove them at the end."""
    image = os.environ.get("MUSTER_TEST_HOSTS_IMAGE") or names.image(SLURM)
    roots: dict[str, ContainerTransport] = {}
    machines = BareMachines(roots, {})
    described: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        for host in hosts:
            args = MachineArgs(
                cluster, "hosts", host, image, 1, 1536, name=host, network="bridge", mounts=mounts.get(host, ())
            )
            roots[host] = stack.enter_context(open_machine(args))
            fingerprint = machines.run(host, PREPARE.format(key=public_key)).strip()
            container = docker.from_env().containers.get(names.container(cluster, host))
            address = container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
            described[host] = {"address": address, "fingerprint": fingerprint}
        yield BareMachines(roots, described)


def describe_rack(machines: BareMachines, head: str, identity: Path) -> dict[str, Any]:
    """Return the spec of a cluster whose controller is `head` and whose compute nodes are the hosts rack1-*."""
    return {
        "groups": {"cpu": {"count": len(machines.described) - 1}},
        "login": {"enabled": False},
        "storage": {"shared": {"kind": "existing"}},
        "software": {"slurm": SLURM},
        "hosts": {
            "machines": dict(machines.described),
            "controller": head,
            "groups": {"cpu": {"match": ["rack1-*"]}},
            "user": "ops",
            "identity_file": str(identity),
        },
    }
