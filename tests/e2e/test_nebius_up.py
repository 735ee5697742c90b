"""A cluster on instances of a server that stands in for Nebius: up, a job, changes, faults, and nothing is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from grpc import StatusCode

from infra.targets.nebius.client import LOOPBACK
from tests.e2e.bare_machines import SLURM
from tests.e2e.cloud_machines import CloudMachines
from tests.e2e.nebius_machines import NebiusMachines
from tests.harness import Spec, Stack
from tests.infra.targets.nebius.fake_cloud import FakeCloud, serve_cloud
from tests.infra.targets.nebius.offers import offer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2700)]

SPEC: Spec = {
    "target": "nebius",
    "groups": {"cpu": {"count": 2}},
    "login": {"enabled": False},
    "storage": {"shared": {"kind": "volume", "size_gb": 64}},
    "software": {"slurm": SLURM},
    "nebius": {
        "project": "project-e00test",
        "ssh_from": ["203.0.113.7/32"],
        "image": "computeimage-e00debian",
        "groups": {"cpu": {"platform": "cpu-d3", "preset": "4vcpu-16gb"}},
    },
}
JOB = """set -e
sbatch --wait -N2 -o job.out --wrap 'srun sh -c "echo \\$SLURMD_NODENAME \\$(hostname)"' >/dev/null
sort job.out"""
FETCH = "curl -s -m 10 http://169.254.169.254/user-data"
CONNECTION_REFUSED = "7"
# On the machine itself, because these machines have no metadata service.
SERVE = """set -e
ip address add 169.254.169.254/32 dev lo
mkdir -m 700 /run/metadata
cat >/run/metadata/user-data <<'END'
{text}
END
systemd-run -q --working-directory /run/metadata python3 -m http.server --bind 169.254.169.254 80
until {fetch}; do sleep 0.1; done
"""
LACK = {"notEnoughResources": {"violations": [{"resourceType": "cpu-d3", "requested": "1"}]}}


def refuse_platform(stack: Stack) -> str:
    """Return the error for a platform that the project does not have."""
    spec = stack.spec
    groups = {"cpu": {**spec["nebius"]["groups"]["cpu"], "platform": "cpu-d9"}}
    stack.spec = {**spec, "nebius": {**spec["nebius"], "groups": groups}}
    refused = stack.up(check=False)
    stack.spec = spec
    return refused.stderr


def find_ssh_rule(cloud: FakeCloud) -> dict[str, Any]:
    """Return who may connect to SSH by the rules of the security group."""
    (rule,) = (r for r in cloud.of_kind("SecurityRule") if "sourceCidrs" in r["spec"].get("ingress", {}))
    ingress: dict[str, Any] = rule["spec"]["ingress"]
    return ingress


@dataclass(frozen=True)
class Nebius:
    """A stack and the cloud that it is created in."""

    stack: Stack
    cloud: FakeCloud


def check_metadata(nebius: Nebius) -> None:
    """Check that root reads user data from a metadata service, and that users and jobs do not."""
    stack = nebius.stack
    for node in ("controller", "cpu-1"):
        (instance,) = (each for each in nebius.cloud.of_kind("Instance") if each["spec"]["hostname"] == node)
        serve = SERVE.format(text=instance["spec"]["cloudInitUserData"], fetch=FETCH)
        assert "PRIVATE KEY" in stack.ssh(node, serve, user="root")
        as_user = f"cd / && runuser -u muster -- {FETCH}; echo $?"
        assert stack.ssh(node, as_user, user="root") == CONNECTION_REFUSED
    assert stack.ssh("controller", f"srun -w cpu-1 sh -c '{FETCH}; echo $?'", user="muster") == CONNECTION_REFUSED


@pytest.fixture
def nebius(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Nebius]:
    stack = make_stack("nebius", SPEC)
    machines = CloudMachines(stack.cluster, "nebius")
    try:
        with serve_cloud(FakeCloud(NebiusMachines(machines))) as cloud:
            cloud.polls = 2
            offer(cloud, available=0)
            stack.env[LOOPBACK] = str(cloud.port)
            yield Nebius(stack, cloud)
    finally:
        # After the server, which starts machines.
        machines.close()


def test_instances_run_a_job_and_nothing_is_left(nebius: Nebius) -> None:
    stack, cloud = nebius.stack, nebius.cloud
    assert "is not a platform of the project" in refuse_platform(stack)
    # One instance of three cannot be had at first: the others stay, and the next `up` goes on.
    cloud.fail("Create", "Instance", StatusCode.RESOURCE_EXHAUSTED, "no capacity", details=LACK, in_operation=True)
    refused = stack.up(check=False)
    assert refused.returncode != 0
    assert "Nebius has no capacity for cpu-d3 now (requested 1)" in refused.stdout + refused.stderr
    stack.up()
    assert stack.ssh("controller", JOB, user="muster").splitlines() == ["cpu-1 cpu-1", "cpu-2 cpu-2"]
    assert "nothing to change" in stack.up().stdout
    assert re.search(r"cpu-2 .*idle", stack.muster("status").stdout)
    check_metadata(nebius)

    find_ssh_rule(cloud)["sourceCidrs"] = ["0.0.0.0/0"]
    stack.spec = {**stack.spec, "groups": {"cpu": {"count": 1}}}
    stack.up()
    assert find_ssh_rule(cloud)["sourceCidrs"] == ["203.0.113.7/32"]
    assert sorted(instance["spec"]["hostname"] for instance in cloud.of_kind("Instance")) == ["controller", "cpu-1"]

    # A resource that the state does not have, as after a run that was killed.
    network = cloud.of_kind("Network")[0]
    metadata = {**network["metadata"], "name": "stray"}
    cloud.handle("nebius.vpc.v1.NetworkService", "Create", {"metadata": metadata})
    receipt = stack.muster("teardown", "--yes", "--force").stdout
    assert set(cloud.kinds.values()) == {"Filesystem"}
    assert "keep: true" in receipt
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    assert cloud.resources == {}
