"""The Pulumi program with the real engine: a creation that fails, and teardown that keeps a filesystem or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.targets.azure.client import LOOPBACK
from tests.harness import Stack
from tests.infra.targets.azure.arm_server import serve_arm
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.offers import offer
from tests.infra.targets.azure.published_types import check_body
from tests.infra.targets.azure.specs import spec_data

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Azure:
    """A stack and the subscription that it is created in."""

    stack: Stack
    arm: FakeArm


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Azure]:
    with serve_arm(FakeArm()) as arm:
        offer(arm)
        spec = spec_data(name="fails")
        spec["storage"]["shared"]["keep"] = True
        yield Azure(Stack("fails", tmp_path, spec, env={LOOPBACK: str(arm.port)}), arm)


def test_machines_that_cannot_be_placed(azure: Azure) -> None:
    stack, arm = azure.stack, azure.arm
    # Each waits for the other: Pulumi asks for nothing more once it knows of a refusal.
    for path, other in (("/virtualMachines/", "ScaleSets"), ("ScaleSets", "/virtualMachines/")):
        arm.fail("PUT", path, 409, "SkuNotAvailable", f"no {path}", times=99, after=other)
    refused = stack.up(check=False)
    text = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert "azure.groups.gpu: SkuNotAvailable: no ScaleSets" in text
    assert "azure.controller: SkuNotAvailable: no /virtualMachines/" in text
    assert len(arm.of_type("Microsoft.StorageCache/amlFilesystems")) == 1
    # Pulumi passes numbers as floats, which Azure refuses.
    for method, what, body in arm.bodies:
        check_body(method, what, body)
    tags = next(iter(arm.resources.values()))["tags"]
    assert (tags["muster.cluster"], tags["muster.stack"]) == ("fails", "fails")

    receipt = stack.muster("teardown", "--yes").stdout
    assert "keep: true" in receipt
    # The filesystem, its network with rules, gateway and address, and the group.
    assert len(arm.resources) == 6
    receipt = stack.muster("teardown", "--yes", "--delete-storage").stdout
    assert "nothing of cluster fails is left" in receipt
    assert arm.resources == {}
