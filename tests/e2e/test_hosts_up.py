"""A cluster on machines that somebody owns: up, a job on two hosts, teardown, and every machine is as it was before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from cluster import names
from infra.resources import ssh_key
from tests.e2e.bare_machines import SLURM, BareMachines, differences, open_machines
from tests.harness import Spec, Stack

pytestmark = pytest.mark.nightly

HEAD, *RACK = HOSTS = ("head", "rack1-1", "rack1-2")
INSIDE = "10.77.0"
# The hosts' filesystem is a volume of this machine, which the pre-flight would take for a local one.
UNCHECKED = "--no-preflight"
JOB = """set -e
sbatch --wait -N2 -o job.out --wrap 'srun sh -c "echo \\$SLURMD_NODENAME \\$(hostname)"' >/dev/null
sort job.out"""


@dataclass(frozen=True)
class Rack:
    """Three machines, and a stack that describes them."""

    machines: BareMachines
    stack: Stack


@pytest.fixture
def rack(make_stack: Callable[[str, Spec], Stack], tmp_path: Path) -> Iterator[Rack]:
    key = ssh_key.generate("me")
    identity = tmp_path / "id"
    identity.write_text(key.private)
    stack = make_stack("rack", {"target": "hosts"})
    labels = {"muster.cluster": stack.cluster}
    shared = docker.from_env().volumes.create(names.volume(stack.cluster, "shared"), labels=labels)
    env_cache = {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env"}
    mounts = {
        host: ({"volume": str(shared.name), "target": "/shared"}, env_cache | {"read_only": host != HEAD})
        for host in HOSTS
    }
    with open_machines(stack.cluster, HOSTS, key.public, mounts) as machines:
        # A second network, which this machine does not reach: nodes use it among each other.
        for number, host in enumerate(HOSTS, 1):
            machines.run(host, f"ip address add {INSIDE}.{number}/24 dev eth0")
            machines.described[host]["cluster_address"] = f"{INSIDE}.{number}"
        stack.spec |= {
            "groups": {"cpu": {"count": 2}},
            "login": {"enabled": False},
            "storage": {"shared": {"kind": "existing"}},
            "software": {"slurm": SLURM},
            "hosts": {
                "machines": dict(machines.described),
                "controller": HEAD,
                "groups": {"cpu": {"match": ["rack1-*"]}},
                "user": "ops",
                "identity_file": str(identity),
            },
        }
        yield Rack(machines, stack)
    shared.remove(force=True)


def check(stack: Stack) -> set[str]:
    """Return the errors of the pre-flight, except those about the disk of this machine."""
    report = json.loads(stack.muster("check", "--json", check=False).stdout)
    return {issue["code"] for issue in report["issues"] if issue["level"] == "error"} - {"host_disk"}


def take_state(machines: BareMachines, host: str) -> list[str]:
    """Return which daemons' folders teardown has moved to the backups, as it does not delete data, and remove them."""
    script = "cd /var/backups/muster; ls var/lib; rm -r var; cd /; rmdir --ignore-fail-on-non-empty /var/backups/muster"
    return machines.run(host, script).split()


def shrink(spec: Spec) -> None:
    """Remove the last host."""
    del spec["hosts"]["machines"]["rack1-2"]
    spec["groups"]["cpu"]["count"] = 1


def test_machines_run_a_job_and_are_given_back_as_they_were(rack: Rack) -> None:
    machines, stack = rack.machines, rack.stack
    before = {host: machines.snapshot(host) for host in HOSTS}
    assert check(stack) == {"host_mount_local"}
    stack.up(UNCHECKED)
    assert check(stack) == {"host_mount_local"}
    assert stack.ssh("controller", JOB, user="muster").splitlines() == ["cpu-1 rack1-1", "cpu-2 rack1-2"]
    assert [machines.run(host, "hostname").strip() for host in HOSTS] == list(HOSTS)
    assert "nothing to change" in stack.up(UNCHECKED).stdout
    assert re.search(r"cpu-2 .*idle", stack.muster("status").stdout)

    shrink(stack.spec)
    stack.up(UNCHECKED)
    assert take_state(machines, "rack1-2") == ["slurm"]
    assert differences(before["rack1-2"], machines.snapshot("rack1-2")) == {}
    assert stack.ssh("controller", "sinfo -h -N -o %N", user="muster") == "cpu-1"

    # The owner edits one of muster's files and one of the machine's, which muster has changed; one host is cut off.
    machines.run("rack1-1", "echo edited >>/etc/muster/fabric.env; echo '# edited' >>/etc/pam.d/sshd")
    # As after a restart.
    machines.run("rack1-1", "systemctl start muster-job-network")

    machines.run("head", "systemctl stop ssh")
    stopped = stack.muster("teardown", "--yes", "--force", check=False)
    assert stopped.returncode != 0
    assert "host head: SSH at" in stopped.stdout
    assert re.search(r"rack1-1: \d+ restored, \d+ removed, 2 left", stopped.stdout)
    machines.run("rack1-1", "systemctl stop muster-job-network; test ! -e /run/nologin")
    assert take_state(machines, "rack1-1") == ["slurm"]
    assert set(differences(before["rack1-1"], machines.snapshot("rack1-1"))) == {
        *("file /etc/muster", "file /etc/muster/fabric.env"),
        *("file /var/backups/muster", "file /var/backups/muster/etc", "file /var/backups/muster/etc/pam.d"),
        "file /var/backups/muster/etc/pam.d/sshd",
    }
    machines.run("rack1-1", "rm -r /etc/muster /var/backups/muster")
    assert differences(before["rack1-1"], machines.snapshot("rack1-1")) == {}

    machines.run("head", "systemctl start ssh")
    printed = stack.muster("teardown", "--yes", "--force").stdout
    assert re.search(r"head: \d+ restored, \d+ removed, 0 left", printed)
    assert take_state(machines, "head") == ["mysql", "slurm"]
    assert differences(before["head"], machines.snapshot("head")) == {}
