"""Replace a lost controller while jobs run: the new one has its disk and address, and no job is affected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bootstrap.bundle import Bundle
from tests.harness import wait_until
from tests.infra.targets.aws.node.machines import CLUSTER, Machines, machines
from tests.infra.targets.aws.node.state_disk import state_disk
from tests.moto_server import Moto

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

VOLUME = "vol-0123456789abcdef0"
HOME = "/shared/home/alice"
# A job that records its process id at each start, and ends when its file exists.
WAITING_JOB = "echo $$ >>$SLURM_JOB_ID.began; until [ -e $SLURM_JOB_ID.go ]; do sleep 0.1; done"
# A step that ended without a controller reports again every 15 s.
TIMEOUT_S = 150.0
KEYS = "sha256sum /etc/slurm/slurm.key /etc/ssh/ssh_host_ed25519_key"


@pytest.fixture(scope="module")
def cloud(moto: Moto) -> Iterator[Machines]:
    moto.reset()
    with state_disk(CLUSTER, VOLUME) as disk, machines(moto, disk) as started:
        yield started


@pytest.fixture(scope="module")
def bundle(cloud: Machines) -> Bundle:
    cloud.boot("controller", "controller")
    cloud.boot("gpu-1", "compute")
    shipped = cloud.ship()
    for name, role in (("controller", "controller"), ("gpu-1", "compute")):
        done = cloud.run(name, cloud.script(shipped, role))
        assert done.code == 0, done.out
    return shipped


@dataclass(frozen=True)
class BeforeLoss:
    """Jobs and keys at the time when the controller was lost."""

    recorded: str
    goes_on: str
    ends_meanwhile: str
    waiting: tuple[str, str]
    keys: str

    @property
    def running(self) -> tuple[str, str]:
        return self.goes_on, self.ends_meanwhile


@pytest.fixture(scope="module")
def before(cloud: Machines, bundle: Bundle) -> BeforeLoss:
    recorded = submit(cloud, "true")
    wait_for(cloud, recorded, "COMPLETED")
    goes_on, ends_meanwhile, *waiting = (submit(cloud, WAITING_JOB) for _ in range(4))
    wait_until(lambda: all(began(cloud, job) for job in (goes_on, ends_meanwhile)), "two jobs run")
    assert [state(cloud, job) for job in waiting] == ["PENDING", "PENDING"]
    wait_for_state(cloud, waiting[1])
    return BeforeLoss(recorded, goes_on, ends_meanwhile, (waiting[0], waiting[1]), cloud.do("controller", KEYS).out)


@pytest.fixture(scope="module")
def replaced(cloud: Machines, bundle: Bundle, before: BeforeLoss) -> BeforeLoss:
    cloud.lose("controller")
    release(cloud, before.ends_meanwhile)
    cloud.boot("controller", "controller", instance="i-another")
    assert cloud.do("controller", "test -e /etc/muster || test -s /var/lib/slurm/slurmctld/job_state").code != 0
    done = cloud.run("controller", cloud.script(bundle, "controller"))
    assert done.code == 0, done.out
    return before


def test_the_new_controller_has_the_same_name_and_keys(cloud: Machines, replaced: BeforeLoss) -> None:
    report = cloud.report("controller")
    assert (report.state, report.instance) == ("ready", "i-another")
    assert cloud.do("controller", KEYS).out == replaced.keys
    hop = cloud.do("gpu-1", f"cd {HOME} && runuser -u alice -- ssh -o BatchMode=yes controller hostname")
    assert (hop.code, hop.out.strip()) == (0, "controller"), hop.out


def test_running_jobs_continue_and_complete(cloud: Machines, replaced: BeforeLoss) -> None:
    """One job ended while there was no controller; the other still runs afterwards."""
    assert state(cloud, replaced.goes_on) == "RUNNING"
    wait_for(cloud, replaced.ends_meanwhile, "COMPLETED")
    release(cloud, replaced.goes_on)
    wait_for(cloud, replaced.goes_on, "COMPLETED")
    for job in replaced.running:
        assert len(began(cloud, job)) == 1
        assert account(cloud, job) == "COMPLETED|gpu-1|0:0|0"


def test_pending_jobs_run_and_job_numbers_continue(cloud: Machines, replaced: BeforeLoss) -> None:
    for job in replaced.waiting:
        release(cloud, job)
        wait_for(cloud, job, "COMPLETED")
    assert int(submit(cloud, "true")) == int(replaced.waiting[-1]) + 1


def test_accounting_still_has_earlier_jobs(cloud: Machines, replaced: BeforeLoss) -> None:
    assert account(cloud, replaced.recorded) == "COMPLETED|gpu-1|0:0|0"


def test_a_controller_that_reboots_finds_its_state(cloud: Machines, replaced: BeforeLoss) -> None:
    """EC2 recovers an instance from broken hardware this way; it is not set up again."""
    job = submit(cloud, WAITING_JOB)
    wait_until(lambda: bool(began(cloud, job)), "the job runs")
    wait_for_state(cloud, job)
    cloud.cut_power("controller")
    cloud.power_on("controller")
    up = "scontrol ping && sacctmgr -n show cluster"
    wait_until(lambda: cloud.do("controller", up).code == 0, "Slurm and its accounting are back", TIMEOUT_S)
    assert account(cloud, replaced.recorded) == "COMPLETED|gpu-1|0:0|0"
    assert [cloud.metadata_answers("controller", user) for user in ("slurm", "alice")] == [True, False]
    release(cloud, job)
    wait_for(cloud, job, "COMPLETED")
    assert len(began(cloud, job)) == 1


def submit(cloud: Machines, script: str) -> str:
    job = cloud.do("controller", f"cd {HOME} && runuser -u alice -- sbatch --parsable --wrap '{script}'")
    assert job.code == 0, job.out
    return job.out.strip()


def release(cloud: Machines, job: str) -> None:
    cloud.do("gpu-1", f"touch {HOME}/{job}.go")


def began(cloud: Machines, job: str) -> list[str]:
    """Return the process ids that the job recorded."""
    done = cloud.do("gpu-1", f"cd {HOME} && if [ -e {job}.began ]; then cat {job}.began; fi")
    assert done.code == 0, done
    return done.out.split()


def state(cloud: Machines, job: str) -> str:
    return cloud.do("controller", f"squeue -h -t all -j {job} -o %T").out.strip()


def account(cloud: Machines, job: str) -> str:
    return cloud.do("controller", f"sacct -X -n -P -j {job} -o State,NodeList,ExitCode,Restarts").out.strip()


def wait_for(cloud: Machines, job: str, expected: str) -> None:
    wait_until(lambda: account(cloud, job).startswith(f"{expected}|"), f"job {job} is {expected}", TIMEOUT_S)


def wait_for_state(cloud: Machines, job: str) -> None:
    """Wait until slurmctld has saved its state, a few seconds after each change; the rest would be lost."""
    cloud.do("controller", f"touch /run/now && scontrol update jobid={job} comment=last")
    saved = "test /var/lib/slurm/slurmctld/job_state -nt /run/now"
    wait_until(lambda: cloud.do("controller", saved).code == 0, "slurmctld has written its state", TIMEOUT_S)
