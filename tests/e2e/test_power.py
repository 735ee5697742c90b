"""A real Slurm runs the power programs against moto: jobs start machines, and faults cost a node but never a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.models.containers import Container

from cluster.inventory import NodeSet
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.node_names import read_node_name
from slurm.control.jobs import SAVES_ON_USR1
from tests import harness
from tests.e2e.cloud_slurm import CloudSlurm, cloud_slurm
from tests.moto_server import Moto
from tests.slurm.power.cluster import TYPE, ZONES, list_running, make_fleet, read_records, with_retry_s

# Each program starts a Python that imports boto3, possibly on a busy machine.
TIMEOUT_S = 300.0
SET = NodeSet(group="gpu", count=4, static=1, cpus=1, memory_mb=900, fabric="efa")


@pytest.fixture
def fleet(aws: Moto) -> Fleet:
    return with_retry_s(make_fleet(aws))


@pytest.fixture
def slurm(aws: Moto, fleet: Fleet, tmp_path: Path) -> Iterator[CloudSlurm]:
    tmp_path.chmod(0o755)
    with cloud_slurm(aws, fleet, (SET,), tmp_path) as running:
        yield running


def test_machines_start_and_end_as_slurm_asks(aws: Moto, fleet: Fleet, slurm: CloudSlurm) -> None:
    first = _static_nodes_are_started(aws, slurm)
    _a_job_gets_its_nodes_in_one_call(aws, slurm)
    assert set(read_records(aws, fleet)) == {"gpu-1", "gpu-2", "gpu-3"}
    _the_topology_lists_every_node(aws, slurm)
    _an_unhealthy_node_is_replaced_and_a_persons_is_not(aws, slurm, first)


@pytest.mark.nightly
def test_a_job_starts_when_its_last_node_is_up(aws: Moto, slurm: CloudSlurm) -> None:
    """tests/slurm/power/test_wait_for_nodes.py has the decisions of the program that waits for the nodes."""
    slurm.run("echo 127.0.0.2 gpu-1 gpu-2 gpu-3 gpu-4 >>/etc/hosts")
    _a_job_waits_for_its_nodes(aws, slurm)
    _the_program_ends_with_its_job(slurm)


@pytest.mark.nightly
def test_a_job_waits_for_its_nodes_even_if_slurm_restarts(aws: Moto, slurm: CloudSlurm) -> None:
    """Slurm 26.05 does not start the program again that waits for them: its own check, every 30 s, starts the job."""
    # Slurm resolves the names of its nodes when it restarts, and nothing answers for names without a container.
    slurm.run("echo 127.0.0.2 gpu-1 gpu-2 gpu-3 gpu-4 >>/etc/hosts")
    slurm.run("cd /tmp && sbatch -N2 -w gpu-2,gpu-3 --wrap 'srun hostname'")
    wait_until(lambda: _count_waiting(slurm) == 1, "the program waits for the nodes")
    slurm.run("scontrol reconfigure")
    wait_until(lambda: "Recovered JobId=1 " in slurm.run("cat /var/log/slurm/slurmctld.log"), "slurmctld restarts")
    assert _count_waiting(slurm) == 0
    _boot_the_nodes_of_the_job(aws, slurm)
    starts = slurm.run("grep 'Configuration for JobId=1 ' /var/log/slurm/slurmctld.log")
    assert "job_time_limit: Configuration for JobId=1 complete" in starts


@pytest.mark.nightly
def test_a_job_does_not_wait_for_a_node_that_is_taken_back_while_it_starts(aws: Moto, slurm: CloudSlurm) -> None:
    """tests/slurm/power/test_interruption.py has what the program does with jobs that are running."""
    slurm.run("echo 127.0.0.2 gpu-1 gpu-2 gpu-3 gpu-4 >>/etc/hosts")
    _a_node_is_up_but_its_job_waits_for_another(aws, slurm)
    _a_node_has_not_registered(aws, slurm)


@pytest.mark.nightly
def test_no_shortage_loses_a_job(aws: Moto, slurm: CloudSlurm) -> None:
    """tests/slurm/power has the decisions one by one."""
    _a_shortage_is_retried(aws, slurm)
    _nothing_is_launched_for_a_cancelled_job(aws, slurm)
    _a_lasting_shortage_requeues_the_job(aws, slurm)


def _static_nodes_are_started(aws: Moto, slurm: CloudSlurm) -> str:
    """The sweep starts a node that has been up; the first machine of a node is launched by `up`."""
    slurm.run("""echo '{"gpu-1": true}' > /var/lib/muster/power/been-up.json""")
    _sweep_as_if_seen_long_ago(slurm, "start gpu-1")
    wait_until(lambda: "gpu-1" in _list_by_name(aws), "gpu-1 is launched")
    slurm.boot("gpu-1")
    wait_until(lambda: slurm.node("gpu-1") == "IDLE+CLOUD", "gpu-1 is up")
    return _list_by_name(aws)["gpu-1"]


def _a_job_gets_its_nodes_in_one_call(aws: Moto, slurm: CloudSlurm) -> None:
    before = len(aws.of("RunInstances"))
    slurm.run("cd /tmp && sbatch -N2 -w gpu-2,gpu-3 --wrap 'srun hostname'")
    wait_until(lambda: {"gpu-2", "gpu-3"} <= set(_list_by_name(aws)), "two machines are launched")
    assert len(aws.of("RunInstances")) == before + 1
    for name in ("gpu-2", "gpu-3"):
        slurm.boot(name)
    wait_until(lambda: "JobState=COMPLETED" in slurm.run("scontrol show job 1"), "the job ran on them")


def _a_job_waits_for_its_nodes(aws: Moto, slurm: CloudSlurm) -> None:
    slurm.run("cd /tmp && sbatch -N2 -w gpu-2,gpu-3 --wrap 'srun hostname'")
    wait_until(lambda: _count_waiting(slurm) == 1, "the program waits for the nodes")
    _boot_the_nodes_of_the_job(aws, slurm)
    starts = slurm.run("grep 'Configuration for JobId=1 ' /var/log/slurm/slurmctld.log")
    # Slurm's own check would be logged as job_time_limit.
    assert "prolog_running_decr: Configuration for JobId=1 is complete" in starts


def _boot_the_nodes_of_the_job(aws: Moto, slurm: CloudSlurm) -> None:
    """Boot gpu-2 and gpu-3; job 1 starts only when both are up."""
    # slurmctld ignores a node that booted before it was asked for.
    wait_until(lambda: {"gpu-2", "gpu-3"} <= set(_list_by_name(aws)), "two machines are launched")
    slurm.boot("gpu-2")
    wait_until(lambda: slurm.node("gpu-2") == "ALLOCATED+CLOUD", "the first node is up")
    assert "JobState=CONFIGURING" in slurm.run("scontrol show job 1")
    slurm.boot("gpu-3")
    wait_until(lambda: "JobState=COMPLETED" in slurm.run("scontrol show job 1"), "the job ran")


def _the_program_ends_with_its_job(slurm: CloudSlurm) -> None:
    slurm.run("cd /tmp && sbatch -w gpu-4 --wrap hostname")
    wait_until(lambda: _count_waiting(slurm) == 1, "the program waits for gpu-4")
    slurm.run("scancel 2")
    wait_until(lambda: _count_waiting(slurm) == 0, "the program of the cancelled job ends")
    assert "JobState=CANCELLED" in slurm.run("scontrol show job 2")
    slurm.run("cd /tmp && sbatch -w gpu-4 --wrap hostname")
    wait_until(lambda: _count_waiting(slurm) == 1, "the program waits for gpu-4 again")
    slurm.run("scontrol update nodename=gpu-4 state=down reason='never came'")
    wait_until(lambda: _count_waiting(slurm) == 0, "the program of the requeued job ends")
    assert "JobState=PENDING" in slurm.run("scontrol show job 3")


def _a_node_is_up_but_its_job_waits_for_another(aws: Moto, slurm: CloudSlurm) -> None:
    slurm.run(f"cd /tmp && sbatch -N2 -w gpu-2,gpu-3 --comment={SAVES_ON_USR1} --wrap 'srun hostname'")
    wait_until(lambda: {"gpu-2", "gpu-3"} <= set(_list_by_name(aws)), "two machines are launched")
    node = slurm.boot("gpu-2")
    wait_until(lambda: slurm.node("gpu-2") == "ALLOCATED+CLOUD", "the first node is up")
    assert "JobState=CONFIGURING" in slurm.run("scontrol show job 1")
    _receive_notice(node, "gpu-2")
    assert "JobState=PENDING" in slurm.run("scontrol show job 1")
    wait_until(lambda: slurm.node("gpu-2") == "IDLE+CLOUD+DRAIN", "the node is empty")
    wait_until(lambda: _count_waiting(slurm) == 0, "the program of the requeued job ends")
    _the_sweep_ends_its_machine(aws, slurm, "gpu-2")


def _a_node_has_not_registered(aws: Moto, slurm: CloudSlurm) -> None:
    slurm.run(f"cd /tmp && sbatch -w gpu-4 --comment={SAVES_ON_USR1} --wrap hostname")
    wait_until(lambda: "gpu-4" in _list_by_name(aws), "gpu-4 is launched")
    # On the controller, whose Slurm is that of a node before slurmctld has heard of it.
    _receive_notice(slurm.controller, "gpu-4")
    assert "JobState=PENDING" in slurm.run("scontrol show job 2")
    assert slurm.node("gpu-4") == "IDLE+CLOUD+DRAIN+NOT_RESPONDING+POWERING_UP"
    _the_sweep_ends_its_machine(aws, slurm, "gpu-4")


def _receive_notice(machine: Container, node: str) -> None:
    """Run the program that a node runs when the cloud announces that it takes the machine back."""
    python = f"env LD_LIBRARY_PATH=/python/lib /python/bin/{Path(sys.executable).resolve().name}"
    done = machine.exec_run(f"{python} -m slurm.power.interruption {node} noon", workdir="/repo")
    assert done.exit_code == 0, done.output.decode()


def _the_sweep_ends_its_machine(aws: Moto, slurm: CloudSlurm, name: str) -> None:
    slurm.sweep()
    wait_until(lambda: slurm.node(name) == "IDLE+CLOUD+POWERED_DOWN", f"Slurm may ask for {name} again")
    wait_until(lambda: name not in _list_by_name(aws), "its machine is ended")


def _count_waiting(slurm: CloudSlurm) -> int:
    """Return how many jobs have a program that waits for their nodes."""
    return int(slurm.run("pgrep --count --full '^bash /repo/slurm/control/wait_for_nodes.sh '", check=False))


def _the_topology_lists_every_node(aws: Moto, slurm: CloudSlurm) -> None:
    for name, machine in _list_by_name(aws).items():
        aws.place(machine, "nn-top", "nn-left" if name == "gpu-2" else "nn-right")
    slurm.sweep()
    wait_until(lambda: "nn-left" in slurm.run("scontrol show topology", check=False), "Slurm knows the places")
    output = slurm.run("scontrol show topology")
    assert "SwitchName=nn-right Level=0" in output
    assert "Nodes=gpu-[1,3]" in output
    assert "SwitchName=unplaced Level=0 LinkSpeed=1 Nodes=gpu-4" in output


def _a_shortage_is_retried(aws: Moto, slurm: CloudSlurm) -> None:
    """A job that cannot be requeued would be lost if its node were marked down."""
    job = _submit_without_capacity(aws, slurm)
    slurm.sweep()
    assert slurm.node("gpu-4").startswith("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP")
    aws.capacity.clear()
    slurm.run("rm /var/lib/muster/power/cooldown.json")
    slurm.sweep()
    assert "gpu-4" in _list_by_name(aws)
    slurm.boot("gpu-4")
    wait_until(lambda: "JobState=COMPLETED" in slurm.run(f"scontrol show job {job}"), "the job ran")
    assert "Restarts=0" in slurm.run(f"scontrol show job {job} --oneliner")
    slurm.run("scontrol update nodename=gpu-4 state=power_down")
    wait_until(lambda: slurm.node("gpu-4") == "IDLE+CLOUD+POWERED_DOWN", "gpu-4 is powered down")
    slurm.end("gpu-4")
    wait_until(lambda: "gpu-4" not in _list_by_name(aws), "its machine is ended")


def _nothing_is_launched_for_a_cancelled_job(aws: Moto, slurm: CloudSlurm) -> None:
    slurm.run(f"scancel {_submit_without_capacity(aws, slurm)}")
    wait_until(lambda: slurm.node("gpu-4").startswith("IDLE"), "nobody waits for gpu-4")
    aws.capacity.clear()
    slurm.run("rm /var/lib/muster/power/cooldown.json")
    slurm.sweep()
    assert "muster: no job is waiting for it any more" in slurm.run("scontrol show node gpu-4 --oneliner")
    _sweep_as_if_seen_long_ago(slurm, "replace gpu-4")
    wait_until(lambda: slurm.node("gpu-4") == "IDLE+CLOUD+POWERED_DOWN", "Slurm may ask for gpu-4 again")
    assert "gpu-4" not in _list_by_name(aws)


def _submit_without_capacity(aws: Moto, slurm: CloudSlurm) -> str:
    """Submit a job for whose node there is no capacity, and return its id once the shortage is being retried."""
    slurm.run(r"""sed -i 's/"retry_s":0/"retry_s":600/' /etc/muster/fleet.json""")
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    job = slurm.run("cd /tmp && sbatch --parsable --no-requeue -N1 -w gpu-4 --wrap 'srun hostname'")
    waiting = "grep -q gpu-4 /var/lib/muster/power/journal.json && ls /var/lib/muster/power/cooldown.json"
    wait_until(lambda: "cooldown" in slurm.run(waiting, check=False), "the shortage is noted")
    return job


def _a_lasting_shortage_requeues_the_job(aws: Moto, slurm: CloudSlurm) -> None:
    slurm.run(r"""sed -i 's/"retry_s":600/"retry_s":0/' /etc/muster/fleet.json""")
    aws.capacity |= {(TYPE, zone): 0 for zone in ZONES}
    job = slurm.run("cd /tmp && sbatch --parsable -N1 -w gpu-4 --wrap 'srun hostname'")
    wait_until(lambda: slurm.node("gpu-4").startswith("DOWN"), "gpu-4 is down")
    output = slurm.run(f"scontrol show node gpu-4 --oneliner; scontrol show job {job} --oneliner")
    assert "muster: capacity: p5.48xlarge: us-east-1a on-demand none, us-east-1b on-demand none" in output
    assert "JobState=PENDING" in output
    assert "Restarts=1" in output
    aws.capacity.clear()
    slurm.run("rm /var/lib/muster/power/cooldown.json")
    _sweep_as_if_seen_long_ago(slurm, "replace gpu-4")
    wait_until(lambda: slurm.node("gpu-4") == "IDLE+CLOUD+POWERED_DOWN", "Slurm may ask for gpu-4 again")


def _an_unhealthy_node_is_replaced_and_a_persons_is_not(aws: Moto, slurm: CloudSlurm, first: str) -> None:
    slurm.run("scontrol update nodename=gpu-1 state=drain reason='health: xid 79'")
    slurm.run("scontrol update nodename=gpu-2 state=drain reason='mine, Ann'")
    _sweep_as_if_seen_long_ago(slurm, "replace gpu-1", "replace gpu-2")
    wait_until(lambda: slurm.node("gpu-1") == "IDLE+CLOUD+POWERED_DOWN", "gpu-1 is powered down")
    slurm.end("gpu-1")
    wait_until(lambda: "gpu-1" not in _list_by_name(aws), "its machine is ended")
    _sweep_as_if_seen_long_ago(slurm, "start gpu-1")
    wait_until(lambda: _list_by_name(aws).get("gpu-1", first) != first, "gpu-1 is another machine")
    slurm.boot("gpu-1")
    wait_until(lambda: slurm.node("gpu-1") == "IDLE+CLOUD", "gpu-1 is back")
    assert slurm.node("gpu-2") == "IDLE+CLOUD+DRAIN"


def _sweep_as_if_seen_long_ago(slurm: CloudSlurm, *findings: str) -> None:
    """Sweep after making these findings look old, so that their grace period is over."""
    slurm.run(f"echo '{json.dumps(dict.fromkeys(findings, 0))}' > /var/lib/muster/power/since.json")
    slurm.sweep()


def _list_by_name(aws: Moto) -> dict[str, str]:
    """Return instance ids by node name, found as the machine itself finds it."""
    instances = {}
    for machine in list_running(aws):
        tags = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
        instances[read_node_name(tags, machine["AmiLaunchIndex"]) or ""] = machine["InstanceId"]
    return instances


def wait_until(met: Callable[[], bool], what: str) -> None:
    harness.wait_until(met, what, TIMEOUT_S)
