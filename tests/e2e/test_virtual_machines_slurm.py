"""Slurm on virtual machines: slurmd's own checks drain a node whose NFS server hangs, or whose clock is wrong.

Each machine has a kernel and a clock of its own. The checks are the program that bootstrap installs; the rest of
Slurm's configuration is only what they need.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from bootstrap.action import Action
from bootstrap.program import pack_program
from bootstrap.steps.health import ETC, SOURCES, START, render_exec_line
from bootstrap.steps.nfs import OPTIONS
from bootstrap.steps.time import plan_time
from setup.paths import Paths
from slurm.control.nodes import NodeState, parse_nodes, show_nodes
from slurm.health.clock import FIX
from slurm.health.drain import PREFIX
from tests.fault_matrix.times import record
from tests.harness import REPO, wait_until
from tests.infra.targets.aws.node.clusters import desired, ubuntu
from tests.infra.targets.aws.node.step_actions import GPU
from tests.virtual_machines.machines import VirtualMachine, explain_lack, open_virtual_machines

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

CONTROLLER, NODE, FILES = "controller", "node-1", "files"
SHARED, EXPORT = "/shared", "/srv/shared"
# slurmd checks every minute; then the check of a mount waits half a minute, and an emulated processor is slow.
CHECKED_S = 240.0
# Three good rounds.
RETURNED_S = 420.0
STARTED_S = 300.0
WRITES = 30
AHEAD_S = 30
SLURM_CONF = f"""ClusterName=machines
SlurmctldHost={CONTROLLER}({{controller}})
SlurmUser=slurm
AuthType=auth/slurm
CredType=cred/slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmdParameters=config_overrides
ReturnToService=2
MessageTimeout=60
SlurmdTimeout=300
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
HealthCheckProgram={ETC}/health
HealthCheckInterval=60
HealthCheckNodeState=ANY
NodeName={NODE} NodeAddr={{node}} CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=cpu Nodes={NODE} Default=YES State=UP
"""
CONFIGURE = """set -e
echo '{hosts}' >>/etc/hosts
mkdir -p /etc/slurm /etc/muster /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
echo '{conf}' >/etc/slurm/slurm.conf
echo {key} | base64 -d >/etc/slurm/slurm.key
chmod 600 /etc/slurm/slurm.key
chown -R slurm /etc/slurm/slurm.key /var/lib/slurm/slurmctld /var/log/slurm
"""
# What bootstrap writes for a node with a shared filesystem.
INSTALL_HEALTH = f"""set -e
echo {{program}} | base64 -d >{ETC}/health.pyz
echo '{{expected}}' >{ETC}/expected.json
echo '{{start}}' >{ETC}/health
chmod 755 {ETC}/health
"""
SERVE_FILES = f"mkdir -p {EXPORT}; systemctl start nfs-server; exportfs -o rw,sync,no_root_squash '*:{EXPORT}'"
MOUNT = f"mkdir -p {SHARED}; mount -t nfs4 -o {OPTIONS} {{server}}:{EXPORT} {SHARED}"
SUBMIT = "sbatch --parsable --chdir=/ -o /dev/null --wrap '{script}'"
WRITER = f"for i in $(seq {WRITES}); do echo $i; sync {SHARED}/log; sleep 1; done >{SHARED}/log"
# A time server without a better one, for a network that reaches no other.
SERVE_TIME = """set -e
apt-get -q -y install --no-install-recommends chrony >/dev/null
printf 'local stratum 8\\nallow\\n' >/etc/chrony/conf.d/server.conf
systemctl restart chrony
"""


@dataclass(frozen=True)
class Cluster:
    """A controller, a node, and the server of the node's shared filesystem."""

    controller: VirtualMachine
    node: VirtualMachine
    files: VirtualMachine

    def read_node(self) -> NodeState:
        return parse_nodes(self.controller.run(show_nodes([NODE])))[NODE]

    def serves(self) -> bool:
        state = self.read_node()
        return state.is_up and not state.out_of_service

    def submit(self, script: str) -> str:
        return self.controller.run(SUBMIT.format(script=script))

    def read_job(self, job: str) -> str:
        return self.controller.run(f"scontrol show job {job} | grep -o 'JobState=[A-Z_]*'").partition("=")[2]

    def wait_for_drain(self, check: str) -> str:
        """Wait until a check has drained the node, and return the reason."""
        wait_until(lambda: f"{PREFIX}{check}: " in self.read_node().reason, "the node is drained", CHECKED_S)
        state = self.read_node()
        assert "DRAIN" in state.flags
        assert state.state != "DOWN"
        return state.reason


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lack := explain_lack(Paths.from_environment()):
        pytest.skip(lack)
    identity = tmp_path_factory.mktemp("vm") / "identity"
    with open_virtual_machines((CONTROLLER, NODE, FILES), identity) as machines:
        controller, node, files = machines.values()
        conf = SLURM_CONF.format(controller=controller.address, node=node.address)
        hosts = "\n".join(f"{machine.address} {name}" for name, machine in machines.items())
        key = controller.run("head -c 1024 /dev/urandom | base64 -w 0")
        for machine in (controller, node):
            machine.run(CONFIGURE.format(hosts=hosts, conf=conf, key=key))
        files.run(SERVE_FILES)
        node.run(MOUNT.format(server=files.address))
        program = base64.b64encode(pack_program(REPO, SOURCES, START)).decode()
        expected = f'{{"mounts": ["{SHARED}"], "controller": "{controller.address}"}}'
        start = f"#!/bin/sh\n{render_exec_line('interval')}"
        node.run(INSTALL_HEALTH.format(program=program, expected=expected, start=start))
        controller.run("systemctl start slurmctld")
        node.run("systemctl start slurmd")
        built = Cluster(controller, node, files)
        wait_until(built.serves, "the node is in service", STARTED_S)
        yield built


@pytest.mark.fault(8)
def test_a_node_whose_nfs_server_hangs_is_drained_by_its_own_checks_and_its_job_goes_on(cluster: Cluster) -> None:
    """The whole machine of the server stands still."""
    job = cluster.submit(WRITER)
    wait_until(lambda: bool(cluster.files.run(f"cat {EXPORT}/log 2>/dev/null || true")), "the job writes", STARTED_S)
    cluster.files.pause()
    try:
        frozen = time.monotonic()
        reason = cluster.wait_for_drain("mounts")
        detect_s = time.monotonic() - frozen
        during = cluster.read_job(job)
    finally:
        cluster.files.resume()
    thawed = time.monotonic()
    assert during == "RUNNING"
    wait_until(lambda: cluster.read_job(job) == "COMPLETED", "the job has ended", STARTED_S)
    wait_until(cluster.serves, "the node is in service again", RETURNED_S)
    recover_s = time.monotonic() - thawed
    source = f"{cluster.files.address}:{EXPORT}"
    assert reason == f"{PREFIX}mounts: no answer within 30 s, {SHARED} from {source} (nfs4)"
    assert cluster.files.run(f"cat {EXPORT}/log").split() == [str(number) for number in range(1, WRITES + 1)]
    record(8, detect_s=detect_s, recover_s=recover_s)


@pytest.mark.fault(15)
def test_a_node_whose_clock_jumps_is_drained_with_its_offset_and_returns_when_chrony_has_set_it(
    cluster: Cluster,
) -> None:
    """The node's chrony has the configuration of bootstrap, with the controller as the time server."""
    wait_until(cluster.serves, "the node is in service", RETURNED_S)
    serving = cluster.controller.start(SERVE_TIME)
    for action in plan_chrony(cluster.controller.address):
        apply(cluster.node, action)
    assert serving.wait(STARTED_S) == 0
    wait_until(lambda: "^*" in cluster.node.run("chronyc -n sources"), "chrony has a time", STARTED_S)
    job = cluster.submit("sleep 30")
    wait_until(lambda: cluster.read_job(job) == "RUNNING", "the job runs", STARTED_S)
    cluster.node.run(f"date -s '+{AHEAD_S} seconds'")
    began = time.monotonic()
    reason = cluster.wait_for_drain("clock")
    detect_s = time.monotonic() - began
    offset = re.fullmatch(
        rf"{PREFIX}clock: ([\d.]+) s ahead of the controller's, {re.escape(FIX).replace(';', ',')}", reason
    )
    # Slurm still accepts what the node sends.
    wait_until(lambda: cluster.read_job(job) == "COMPLETED", "the job has ended", STARTED_S)
    healed = time.monotonic()
    wait_until(lambda: is_set_by_chrony(cluster), "`chronyc makestep` sets the clock", STARTED_S)
    wait_until(cluster.serves, "the node is in service again", RETURNED_S)
    assert offset, reason
    # chrony already turns the clock back, by at most a twelfth of the time.
    assert AHEAD_S - 1 - detect_s / 12 < float(offset[1]) < AHEAD_S + 1
    record(15, detect_s=detect_s, recover_s=time.monotonic() - healed)


def plan_chrony(server: str) -> list[Action]:
    """Return what bootstrap does on a machine of a cloud whose time server is this one."""
    cluster = desired()
    assert cluster.cloud is not None
    cloud = cluster.cloud.model_copy(update={"time_server": server})
    return plan_time(ubuntu(), GPU, replace(cluster, cloud=cloud))


def apply(machine: VirtualMachine, action: Action) -> None:
    data = base64.b64encode(action.data).decode()
    script = base64.b64encode(action.script.encode()).decode()
    machine.run(f'echo {data} | base64 -d | sh -ec "$(echo {script} | base64 -d)"')


def is_set_by_chrony(cluster: Cluster) -> bool:
    """Run the command of the reason on the node; return whether its clock is right after it."""
    assert "chronyc makestep" in FIX
    cluster.node.run("chronyc makestep")
    measured = cluster.node.run(f"python3 {ETC}/health.pyz clock {cluster.controller.address}", check=False)
    return measured.startswith("offset ") and abs(float(measured.split()[1])) < 1
