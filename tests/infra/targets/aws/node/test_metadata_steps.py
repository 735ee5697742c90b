"""Steps for credentials on AWS: who reads the metadata service, and what jobs get instead."""

from __future__ import annotations

from bootstrap.steps import fabric, metadata
from bootstrap.steps.cloud import job_credentials
from cluster.inventory import Node
from tests.infra.targets.aws.node.clusters import desired, ubuntu
from tests.infra.targets.aws.node.step_actions import CONTROLLER, GPU, LOGIN, titles, written


def test_only_root_reads_metadata_and_slurm_on_the_controller() -> None:
    """The step runs before users can log in and before slurmd starts."""

    def allowed(node: Node) -> str:
        script = written(metadata.STEP.actions(ubuntu(), node, desired()), "/etc/muster/metadata")
        return next(line for line in script.splitlines() if line.startswith("users="))

    assert [allowed(node) for node in (CONTROLLER, LOGIN, GPU)] == [
        'users="root slurm"',
        'users="root"',
        'users="root"',
    ]
    there = ubuntu(packages={"nftables": "1.0.2"})
    todo = metadata.STEP.actions(there, LOGIN, desired())
    logins = written(todo, "/etc/systemd/system/systemd-user-sessions.service.d/muster-metadata.conf")
    assert logins == "[Unit]\nRequires=muster-metadata.service\n"
    assert "systemctl start --no-block systemd-user-sessions.service" in todo[-1].script
    unit = written(todo, "/etc/systemd/system/muster-metadata.service")
    assert "systemd-user-sessions.service" in unit.partition("Before=")[2].splitlines()[0]
    first = "write /etc/systemd/system/slurmd.service.d/muster-metadata.conf"
    assert [first in titles(metadata.STEP, there, node, desired()) for node in (CONTROLLER, LOGIN, GPU)] == [
        False,
        False,
        True,
    ]


def test_jobs_and_login_shells_get_the_variables_of_the_credentials() -> None:
    target = desired(jobs_role="arn:aws:iam::123456789012:role/muster-toy-jobs")
    variables = next(a for a in fabric.STEP.actions(ubuntu(), GPU, target) if a.title == "write /etc/muster/fabric.env")
    assert b"\nAWS_CONFIG_FILE=/run/muster-jobs/config\n" in variables.data
    (profile,) = (a for a in job_credentials.STEP.actions(ubuntu(), LOGIN, target) if "profile.d" in a.title)
    assert profile.data == b'export AWS_CONFIG_FILE="${AWS_CONFIG_FILE:-/run/muster-jobs/config}"\n'
    assert not [a for a in job_credentials.STEP.actions(ubuntu(), GPU, target) if "profile.d" in a.title]
