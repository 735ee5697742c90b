"""Alerts of a real cluster reach a web server on another node; the address stays secret."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from slurm.alerts import install
from slurm.alerts.conditions import SILENT_GRACE_S
from tests.fault_matrix.times import record
from tests.harness import REPO, Spec, Stack, small_spec, wait_until
from tests.slurm import webhook_receiver

PORT = 8099
SECRET = "T0/B0/not-for-everybody"
RECEIVED = "/tmp/received.json"
EXPECTED = "/etc/muster/expected.json"
# The user of a stack that names none.
USER = "muster"
# Two polls of the program, its pause between messages, and Slurm's own time to miss a node.
ALERT_S = 150
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def cluster(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Stack]:
    """Return a cluster of its own: the tests of the shared one expect that its stack file has no secrets."""
    spec = small_spec()
    spec["groups"]["cpu"] = {"count": 3, "size": {"cpus": 1, "memory_mb": 1024}}
    spec["slurm"] = {"default_group": "gpu"}
    stack = make_stack("alerts", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@dataclass(frozen=True)
class Watched:
    """A cluster whose alerts reach a web server on its login node, and the `up` that set this up."""

    cluster: Stack
    up: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def watched(cluster: Stack) -> Iterator[Watched]:
    receiver = Path(webhook_receiver.__file__).read_text()
    cluster.ssh("login", f"cat >/tmp/receiver.py <<'END'\n{receiver}\nEND", user="root")
    # The first attempt fails, so that the message arrives only by a retry.
    start = (
        f"nohup python3 /tmp/receiver.py {PORT} {RECEIVED} 503 >/dev/null 2>&1 </dev/null & echo $! >/tmp/receiver.pid"
    )
    cluster.ssh("login", start, user="root")
    try:
        encrypt_address(cluster, f"http://login:{PORT}/{SECRET}")
        yield Watched(cluster, cluster.up())
    finally:
        cluster.ssh("login", "kill $(cat /tmp/receiver.pid)", user="root", check=False)


def test_people_are_told_and_the_address_stays_secret(watched: Watched) -> None:
    cluster = watched.cluster
    try:
        shorten_wait_of_queue(cluster)
        break_things(cluster)
        expected = (
            "gpu-2 is drained: health: mounts: /nowhere is not mounted",
            "cpu-3 is lost: ",
            "the gate of gpu failed: gpu-1: job: a test",
            "the queue of cpu is stuck: 1 job waits while nothing runs",
        )
        wait_until(lambda: all(text in read_messages(cluster) for text in expected), f"all of {expected}", ALERT_S)
        # A person who drains a node needs no message about it.
        assert "cpu-1 is drained" not in read_messages(cluster)
        assert read_messages(cluster).startswith(f"muster cluster {cluster.cluster}:\n")
        check_secrecy(cluster, watched.up)
    finally:
        heal(cluster)


@pytest.mark.fault(4)
def test_people_are_told_that_the_database_is_down(watched: Watched) -> None:
    """Jobs run meanwhile, and their records arrive later."""
    cluster = watched.cluster
    cluster.ssh("controller", "systemctl stop slurmdbd mariadb", user="root")
    stopped = time.monotonic()
    try:
        job = cluster.ssh("login", "cd ~ && sbatch --parsable --wait -p gpu -N1 -J without-records --wrap hostname")
        text = "slurmdbd or its database does not answer"
        wait_until(lambda: text in read_messages(cluster), "the alert", SILENT_GRACE_S + ALERT_S)
        detect_s = time.monotonic() - stopped
    finally:
        cluster.ssh("controller", "systemctl start mariadb slurmdbd", user="root")
        started = time.monotonic()
    show = f"sacct -X -n -P -o JobName,State -j {job} 2>/dev/null || true"
    wait_until(lambda: cluster.ssh("login", show) == "without-records|COMPLETED", "the record arrives")
    record(4, detect_s=detect_s, recover_s=time.monotonic() - started)


def encrypt_address(cluster: Stack, address: str) -> None:
    """Run `muster alerts`, and take what it wrote over into the spec of the test's stack."""
    environment = cluster.environment()
    file = cluster.home / "stacks" / f"Pulumi.{cluster.name}.yaml"
    done = subprocess.run(
        cluster.command("alerts"), env=environment, cwd=REPO, input=f"{address}\n", text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr + file.read_text()
    cluster.spec["alerts"] = yaml.safe_load(file.read_text())["config"]["muster:cluster"]["alerts"]
    assert list(cluster.spec["alerts"]["webhook"]) == ["secure"]


def shorten_wait_of_queue(cluster: Stack) -> None:
    script = f'sed -i \'s/"stuck_s": [0-9]*/"stuck_s": 5/\' {install.CONFIG}; systemctl restart {install.NAME}'
    cluster.ssh("controller", script, user="root")


def break_things(cluster: Stack) -> None:
    """Break a node's mounts and another's slurmd, leave an alert of the gate, and let a job wait for nothing."""
    broken = f'cp {EXPECTED} /root/; sed -i \'s#"/shared"#"/shared", "/nowhere"#\' {EXPECTED}; /etc/muster/health'
    cluster.ssh("gpu-2", broken, user="root")
    cluster.ssh("controller", install.hand_over("the gate of gpu failed: gpu-1: job: a test"), user="root")
    drain = "scontrol update nodename=cpu-[1-2] state=drain reason='new memory'"
    cluster.ssh("controller", drain, user="root")
    cluster.ssh("cpu-3", "systemctl stop slurmd", user="root")
    cluster.ssh("login", "cd ~ && sbatch -p cpu -J waiting --wrap hostname")


def read_messages(cluster: Stack) -> str:
    received = cluster.ssh("login", f"cat {RECEIVED} 2>/dev/null || echo '[]'", user="root")
    return "\n".join(json.loads(received or "[]"))


def check_secrecy(cluster: Stack, up: subprocess.CompletedProcess[str]) -> None:
    shown = cluster.ssh(
        "controller",
        f"ps -eo args; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; "
        f"journalctl --no-pager; cat {install.STATE}/state.json {install.UNIT_PATH}; stat -c '%a %U' {install.CONFIG}",
        user="root",
    )
    assert shown.endswith("600 slurm")
    assert SECRET not in shown
    assert SECRET not in up.stdout + up.stderr
    files = [path for path in cluster.home.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    # The cluster's only user, whose SSH access to the controller is that of root.
    read = f"runuser -u {USER} -- sh -c 'cat {install.CONFIG} || echo denied'"
    assert cluster.ssh("controller", read, user="root") == "denied"


def heal(cluster: Stack) -> None:
    cluster.ssh("login", "scancel -n waiting", check=False)
    cluster.ssh("cpu-3", "systemctl start slurmd", user="root")
    resume = "scontrol update nodename=cpu-[1-2] state=resume"
    cluster.ssh("controller", resume, user="root", check=False)
    restore = f"cp /root/expected.json {EXPECTED}; for round in 1 2 3; do /etc/muster/health; done"
    cluster.ssh("gpu-2", restore, user="root", check=False)
    idle = "sinfo -h -p cpu,gpu -t idle -o %D | awk '{ n += $1 } END { print n }'"
    wait_until(lambda: cluster.ssh("login", idle) == "5", "all nodes are idle")
