"""User data on systemd machines: a controller and a compute node set themselves up, or report the failed step."""

from __future__ import annotations

import re

import pytest

from bootstrap.bundle import Bundle
from infra.targets.aws.node import parameters
from tests.harness import wait_until
from tests.infra.targets.aws.node.machines import BUCKET, CLUSTER, Machines

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def bundle(cloud: Machines) -> Bundle:
    cloud.boot("controller", "controller")
    cloud.boot("gpu-1", "compute")
    return cloud.ship()


@pytest.fixture(scope="module")
def controller(cloud: Machines, bundle: Bundle) -> str:
    done = cloud.run("controller", cloud.script(bundle, "controller"))
    assert done.code == 0, done.out
    return done.out


@pytest.fixture(scope="module")
def waiting_job(cloud: Machines, controller: str) -> str:
    """Return the id of a job that asks Slurm to start the node while its machine has booted, but is not set up."""
    sent = cloud.do("controller", "cd / && runuser -u alice -- sbatch --parsable -o /dev/null --wrap hostname")
    assert sent.code == 0, sent.out
    shown = "scontrol show node gpu-1 | grep -q POWERING_UP"
    wait_until(lambda: cloud.do("controller", shown).code == 0, "Slurm starts gpu-1")
    return sent.out.strip()


@pytest.fixture(scope="module")
def compute(cloud: Machines, bundle: Bundle, controller: str, waiting_job: str) -> str:
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 0, f"{done.out}\n{cloud.explain('gpu-1')}"
    return done.out


def test_machines_become_a_cluster_that_runs_jobs(
    cloud: Machines, bundle: Bundle, controller: str, compute: str
) -> None:
    for name in ("controller", "gpu-1"):
        report = cloud.report(name)
        assert (report.state, report.instance, report.bundle) == ("ready", f"i-{name}", bundle.digest), report
    ran = cloud.do("controller", "cd / && timeout 60 runuser -u alice -- srun -N1 hostname")
    assert (ran.code, ran.out.split()) == (0, ["gpu-1"]), f"{ran.out}\n{cloud.explain('gpu-1')}"
    assert "muster: gpu-1 is ready" in cloud.do("gpu-1", "cat /var/log/muster/node.log").out
    hop = "cd / && runuser -u alice -- {} ssh -o BatchMode=yes {} true"
    refused = cloud.do("controller", hop.format("", "gpu-1"))
    assert (refused.code, "no active jobs" in refused.out) == (255, True), refused.out
    # The controller is the login node here.
    for login in (cloud.do("gpu-1", hop.format("", "controller")), cloud.do("controller", hop.format("srun", "gpu-1"))):
        assert login.code == 0, f"{login.out}\n{cloud.explain('gpu-1')}"


def test_a_job_that_waited_for_a_machine_to_be_set_up_runs(cloud: Machines, compute: str, waiting_job: str) -> None:
    """A container's boot, that of its host, is before the job; slurmctld would wait for another boot."""
    ended = f"sacct -nXP -j {waiting_job} -o State | grep -qx COMPLETED"
    wait_until(lambda: cloud.do("controller", ended).code == 0, "the job has ended")


def test_a_restart_of_slurmd_does_not_count_as_a_boot(cloud: Machines, compute: str) -> None:
    sent = cloud.do("controller", "cd / && runuser -u alice -- sbatch --parsable -o /dev/null --wrap 'sleep 300'")
    state = f"squeue -ho %T -j {sent.out.strip()}"
    wait_until(lambda: cloud.do("controller", state).out.strip() == "RUNNING", "the job runs")
    registered = "scontrol show node gpu-1 | grep -o SlurmdStartTime=.*"
    before = cloud.do("controller", registered).out
    assert cloud.do("gpu-1", "sleep 1; systemctl restart slurmd").code == 0
    wait_until(lambda: cloud.do("controller", registered).out != before, "slurmd has registered again")
    assert cloud.do("controller", state).out.strip() == "RUNNING"
    assert cloud.do("controller", f"scancel {sent.out.strip()}").code == 0


@pytest.mark.parametrize("node", ["controller", "gpu-1"])
def test_root_cannot_run_jobs(cloud: Machines, compute: str, node: str) -> None:
    """Whoever is root on one machine is not root on all of them by asking Slurm for a job."""
    for line in ("srun -N1 id -un", "sbatch --wrap 'id -un'", "salloc -N1 id -un"):
        refused = cloud.do(node, f"cd / && timeout 60 {line} 2>&1")
        assert (refused.code, "Invalid user id" in refused.out) == (1, True), refused.out


def test_a_second_run_changes_nothing(cloud: Machines, bundle: Bundle, compute: str) -> None:
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 0, f"{done.out}\n{cloud.explain('gpu-1')}"
    assert re.findall(r"muster: (\S+) changed", done.out) == []
    assert "muster: fetch" not in done.out


@pytest.mark.nightly
def test_bundles_with_the_same_packages_share_an_environment(cloud: Machines, bundle: Bundle, compute: str) -> None:
    """A machine from a baked image has the environment, but not the bundle."""
    link = "readlink /opt/muster/current/venv"
    environment = cloud.do("gpu-1", link).out.strip()
    assert environment.startswith("/opt/muster/environments/")
    cloud.do("gpu-1", f"rm -rf /opt/muster/{bundle.digest} /opt/muster/current; touch {environment}/of-the-image")
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 0, f"{done.out}\n{cloud.explain('gpu-1')}"
    assert cloud.do("gpu-1", link).out.strip() == environment
    assert cloud.do("gpu-1", f"test -e {environment}/of-the-image").code == 0
    # An environment of which unpacking was interrupted is not used.
    cloud.do("gpu-1", f"rm -rf /opt/muster/{bundle.digest} {environment}/complete {environment}/lib")
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    assert done.code == 0, f"{done.out}\n{cloud.explain('gpu-1')}"
    assert cloud.do("gpu-1", f"test -e {environment}/of-the-image").code != 0


def test_the_programs_of_slurm_s_user_are_compiled_on_the_controller(cloud: Machines, controller: str) -> None:
    compiled = "ls /opt/muster/current/venv/lib/python3*/site-packages/botocore/__pycache__/session.*.pyc"
    wait_until(lambda: cloud.do("controller", compiled).code == 0, "botocore is compiled")


def test_a_job_cannot_read_the_credentials_of_its_node(cloud: Machines, compute: str) -> None:
    assert [cloud.metadata_answers("gpu-1", user) for user in ("root", "alice", "slurm")] == [True, False, False]
    assert [cloud.metadata_answers("controller", user) for user in ("root", "alice", "slurm")] == [True, False, True]
    cloud.do("gpu-1", "nft flush ruleset")
    assert cloud.metadata_answers("gpu-1", "alice")
    assert cloud.do("gpu-1", "systemctl restart slurmd").code == 0
    assert not cloud.metadata_answers("gpu-1", "alice")


def test_no_secret_is_in_user_data_or_log(cloud: Machines, bundle: Bundle, compute: str) -> None:
    key = cloud.do("gpu-1", "base64 -w0 /etc/slurm/slurm.key").out[:40]
    host_key = cloud.keys["compute"].private.splitlines()[2]
    logs = cloud.do("gpu-1", "cat /var/log/muster/node.log /var/lib/user-data.sh; journalctl -o cat").out
    assert len(key) == 40
    assert key not in logs
    assert host_key not in logs


def test_a_bundle_with_another_hash_is_rejected(cloud: Machines, bundle: Bundle, compute: str) -> None:
    other = "0" * 64
    cloud.moto.client("s3").put_object(Bucket=BUCKET, Key=parameters.bundle(other), Body=bundle.archive[:4096])
    done = cloud.run("gpu-1", cloud.script(bundle, "compute", digest=other[:16], sha256=other))
    assert done.code == 1, done.out
    report = cloud.report("gpu-1")
    assert (report.state, report.step, report.bundle) == ("failed", "fetch", other[:16])
    assert f"expected {other}; log: /var/log/muster/node.log" in report.line
    assert cloud.do("gpu-1", "readlink /opt/muster/current").out.strip() == f"/opt/muster/{bundle.digest}"


@pytest.mark.fault(19)
def test_a_step_that_fails_is_reported_with_its_last_line(cloud: Machines, bundle: Bundle, compute: str) -> None:
    cloud.do("gpu-1", "systemctl stop slurmd; chmod -x /usr/sbin/slurmd")
    done = cloud.run("gpu-1", cloud.script(bundle, "compute"))
    cloud.do("gpu-1", "chmod +x /usr/sbin/slurmd")
    assert done.code == 3, done.out
    report = cloud.report("gpu-1")
    assert (report.state, report.step) == ("failed", "compute")
    assert "node gpu-1, step compute: start slurmd: " in report.line
    assert CLUSTER not in report.line


@pytest.mark.nightly
def test_a_machine_that_must_restart_continues_its_set_up(cloud: Machines, bundle: Bundle, compute: str) -> None:
    # On EC2 no variables are needed; here they must be in the environment of the unit that continues.
    variables = f"AWS_ENDPOINT_URL={cloud.endpoint} AWS_EC2_METADATA_SERVICE_ENDPOINT={cloud.imds}"
    conf = "/etc/systemd/system.conf.d/endpoints.conf"
    cloud.do("gpu-1", f"mkdir -p {conf.rpartition('/')[0]} /run/muster")
    cloud.put("gpu-1", conf, f"[Manager]\nDefaultEnvironment={variables}\n".encode())
    cloud.do("gpu-1", "echo 'restart with another kernel' >/run/muster/restart")
    cloud.run("gpu-1", cloud.script(bundle, "compute"))
    report = cloud.report("gpu-1")
    assert (report.state, report.step, report.line) == ("working", "restart", "restart with another kernel")
    wait_until(lambda: not cloud.is_running("gpu-1"), "gpu-1 is down")
    cloud.power_on("gpu-1")
    wait_until(lambda: cloud.report("gpu-1").state == "ready", "gpu-1 has continued")
    assert cloud.do("gpu-1", "test -e /etc/systemd/system/multi-user.target.wants/muster-continue.service").code != 0
