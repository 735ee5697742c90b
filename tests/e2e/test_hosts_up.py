"""A cluster on machines that somebody owns: up, a job on two hosts, teardown, and every machine is as it was before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.bare_machines import BareMachines, differences
from tests.e2e.rack import HOSTS, UNCHECKED, Rack, open_rack
from tests.harness import Spec, Stack

pytestmark = pytest.mark.nightly

# Left by an earlier cluster, which this one must neither use nor lose.
OLD_KEYS = """mkdir -p /etc/slurm /etc/munge
head -c 1024 /dev/urandom >/etc/slurm/slurm.key
head -c 128 /dev/urandom >/etc/munge/munge.key
chmod 600 /etc/slurm/slurm.key /etc/munge/munge.key"""
JOB = """set -e
sbatch --wait -N2 -o job.out --wrap 'srun sh -c "echo \\$SLURMD_NODENAME \\$(hostname)"' >/dev/null
sort job.out"""


@pytest.fixture
def rack(make_stack: Callable[[str, Spec], Stack], tmp_path: Path) -> Iterator[Rack]:
    with open_rack(make_stack, tmp_path) as opened:
        yield opened


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
    machines.run("rack1-1", OLD_KEYS)
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
