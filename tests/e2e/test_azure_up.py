"""A cluster on machines of a server that stands in for Azure: up, a job, changes, faults, and nothing is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from infra.targets.azure.client import LOOPBACK
from tests.e2e.azure_machines import AzureMachines
from tests.e2e.bare_machines import SLURM
from tests.e2e.cloud_machines import CloudMachines
from tests.harness import Spec, Stack
from tests.infra.targets.azure.arm_server import serve_arm
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.offers import offer
from tests.infra.targets.azure.specs import IMAGE, SUBSCRIPTION

pytestmark = pytest.mark.nightly

SPEC: Spec = {
    "target": "azure",
    "groups": {"cpu": {"count": 2}},
    "login": {"enabled": False},
    "storage": {"shared": {"kind": "volume", "size_gb": 8192}},
    "software": {"slurm": SLURM},
    "azure": {
        "subscription": SUBSCRIPTION,
        "region": "eastus",
        "ssh_from": ["203.0.113.7/32"],
        "public_addresses": False,
        "image": IMAGE,
        "groups": {"cpu": {"size": "Standard_D4s_v5"}},
    },
}
JOB = """set -e
sbatch --wait -N2 -o job.out --wrap 'srun sh -c "echo \\$SLURMD_NODENAME \\$(hostname)"' >/dev/null
sort job.out"""
SCALE_SETS, GROUPS = "Microsoft.Compute/virtualMachineScaleSets", "Microsoft.Network/networkSecurityGroups"


def refuse_size(stack: Stack) -> str:
    """Return the error for a size that the region does not offer."""
    spec = stack.spec
    stack.spec = {**spec, "azure": {**spec["azure"], "groups": {"cpu": {"size": "Standard_D16s_v5"}}}}
    refused = stack.up(check=False)
    stack.spec = spec
    return refused.stderr


@dataclass(frozen=True)
class Azure:
    """A stack and the subscription that it is created in."""

    stack: Stack
    arm: FakeArm

    @property
    def instances(self) -> dict[str, Any]:
        """The machines of the scale set by number."""
        (instances,) = self.arm.instances.values()
        return instances


@pytest.fixture
def azure(make_stack: Callable[[str, Spec], Stack]) -> Iterator[Azure]:
    stack = make_stack("azure", SPEC)
    machines = CloudMachines(stack.cluster, "azure")
    try:
        with serve_arm(FakeArm(AzureMachines(machines))) as arm:
            arm.polls = 2
            offer(arm)
            stack.env[LOOPBACK] = str(arm.port)
            yield Azure(stack, arm)
    finally:
        # After the server, which starts machines.
        machines.close()


def test_scale_set_runs_a_job_and_nothing_is_left(azure: Azure) -> None:
    stack, arm = azure.stack, azure.arm
    assert "'Standard_D16s_v5' is not offered in eastus" in refuse_size(stack)
    # The scale set cannot be placed at first: everything else stays, and the next `up` goes on.
    arm.fail("PUT", "ScaleSets", 200, "AllocationFailed", "not sufficient capacity", in_operation=True)
    refused = stack.up(check=False)
    assert refused.returncode != 0
    assert "AllocationFailed: not sufficient capacity" in refused.stdout + refused.stderr
    stack.up()
    assert stack.ssh("controller", JOB, user="muster").splitlines() == ["cpu-1 cpu-1", "cpu-2 cpu-2"]
    assert "nothing to change" in stack.up().stdout
    assert re.search(r"cpu-2 .*idle", stack.muster("status").stdout)
    first = min(azure.instances, key=int)

    (rules,) = (resource["properties"]["securityRules"] for resource in arm.of_type(GROUPS))
    rules[0]["properties"]["sourceAddressPrefixes"] = ["0.0.0.0/0"]
    stack.spec = {**stack.spec, "groups": {"cpu": {"count": 1}}}
    stack.up()
    (rules,) = (resource["properties"]["securityRules"] for resource in arm.of_type(GROUPS))
    assert rules[0]["properties"]["sourceAddressPrefixes"] == ["203.0.113.7/32"]
    assert list(azure.instances) == [first]
    assert arm.of_type(SCALE_SETS)[0]["sku"]["capacity"] == 1

    # A resource that the state does not have, as after a run that was killed.
    network = next(resource for resource in arm.resources.values() if resource["type"].endswith("/publicIPAddresses"))
    stray = network["id"].replace("-nat", "-stray")
    arm.resources[stray.casefold()] = {**network, "id": stray, "name": "stray"}
    receipt = stack.muster("teardown", "--yes", "--force").stdout
    assert "keep: true" in receipt
    assert "needs it" in receipt
    assert sorted({resource["type"].partition("/")[2] for resource in arm.resources.values()}) == [
        *("amlFilesystems", "natGateways", "networkSecurityGroups", "publicIPAddresses"),
        *("resourceGroups", "virtualNetworks"),
    ]
    stack.muster("teardown", "--yes", "--force", "--delete-storage")
    assert arm.resources == {}
