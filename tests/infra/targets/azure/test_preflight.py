"""What a subscription offers, compared with a spec: sizes, zones, quotas, the image, and addresses."""

from __future__ import annotations

from typing import Any

import pytest

from infra.resources.error import ResourceError
from infra.targets.azure.client import open_cloud
from infra.targets.azure.preflight import judge_account, read_account
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.offers import H100, offer
from tests.infra.targets.azure.resources import create_network, create_scale_set
from tests.infra.targets.azure.specs import GALLERY_IMAGE, IMAGE, Data, make_spec, spec_data
from tests.infra.targets.rented.issues import format_issues

OFFERED_FIX = "choose another size, zone or region; `az vm list-skus --size SIZE --all` lists where it is offered"
QUOTA_FIX = "request a higher quota in Azure's portal (Quotas, Compute), or make the cluster smaller"


def judge(**changes: Any) -> list[str]:
    """Return the issues of a spec."""
    spec = make_spec(**changes)
    with open_cloud("azure.subscription") as client:
        return format_issues(judge_account(spec, read_account(client, spec)))


def section(**changes: Any) -> Data:
    return {"azure": {**spec_data()["azure"], **changes}}


def test_a_subscription_that_has_everything(arm: FakeArm) -> None:
    offer(arm)
    assert judge() == []
    assert judge(**section(zone="2")) == []


def test_sizes_that_are_not_offered(arm: FakeArm) -> None:
    offer(arm, name="Standard_ND96asr_v4")
    assert judge() == [f"error azure.groups.gpu.size: '{H100}' is not offered in eastus; {OFFERED_FIX}"]
    offer(arm, restrictions=[{"type": "Location", "reasonCode": "NotAvailableForSubscription"}])
    message = "is not available to the subscription in eastus (NotAvailableForSubscription)"
    assert judge() == [f"error azure.groups.gpu.size: '{H100}' {message}; {OFFERED_FIX}"]


def test_zones(arm: FakeArm) -> None:
    offer(arm, restrictions=[{"type": "Zone", "restrictionInfo": {"zones": ["1", "3"]}}])
    message = f"'{H100}' is not available in zone 1 of eastus; allowed: 2"
    assert judge(**section(zone="1")) == [f"error azure.groups.gpu.size: {message}; {OFFERED_FIX}"]
    assert judge(**section(zone="2")) == []


def test_quotas_count_only_what_is_missing(arm: FakeArm) -> None:
    offer(arm, h100_cpus=96)
    message = "quota 'standardNDSH100v5Family' in eastus has 96 CPUs left (0 of 96 are used); needed: 192"
    assert judge() == [f"error azure.groups.gpu.size: {message}; {QUOTA_FIX}"]
    create_network()
    create_scale_set(["gpu-1"])
    assert judge() == []
    offer(arm, cpus=100)
    message = "quota 'cores' in eastus has 100 CPUs left (0 of 100 are used); needed: 104"
    assert judge() == [f"error azure.controller.size: {message}; {QUOTA_FIX}"]


def test_images(arm: FakeArm) -> None:
    offer(arm)
    arm.answers["/versions/24.04.2025091701"] = {"properties": {"plan": {"name": "paid"}}}
    assert judge() == [
        f"error azure.image: '{IMAGE}' is sold by the plan 'paid', whose terms somebody has to accept; "
        "choose an image without a plan: write the id of a gallery's image version that has Slurm (docs/azure.md)"
    ]
    del arm.answers["/versions/24.04.2025091701"]
    assert judge() == [
        f"error azure.image: '{IMAGE}' does not exist in eastus, or the account may not see it; "
        "correct it; `az vm image list --all` lists images"
    ]


def test_a_gallery_that_the_account_may_not_read(arm: FakeArm) -> None:
    offer(arm, cpus=100)
    arm.fail("GET", "/galleries/", 403, "AuthorizationFailed", "no authorization to read", times=9)
    image, cores = judge(**section(image=GALLERY_IMAGE))[::-1]
    assert image == (
        f"error azure.image: '{GALLERY_IMAGE}' cannot be read: AuthorizationFailed; "
        "ask for the role `Reader` on the gallery"
    )
    assert cores.startswith("error azure.controller.size: quota 'cores'")
    arm.faults.clear()
    missing = judge(**section(image=GALLERY_IMAGE))[-1]
    assert "does not exist in eastus" in missing
    assert missing.endswith("correct it; `az sig image-version list` lists images")
    arm.fail("GET", "/galleries/", 409, "SomethingElse", "no idea")
    with pytest.raises(ResourceError, match=r"^azure\.subscription: SomethingElse: no idea"):
        judge(**section(image=GALLERY_IMAGE))


def test_room_for_filesystems(arm: FakeArm) -> None:
    offer(arm)
    assert judge(network={"cidr": "10.88.0.0/24"}) == []
    arm.answers["/getRequiredAmlFSSubnetsSize"] = {"filesystemSubnetSize": 60}
    assert judge(network={"cidr": "10.88.0.0/24"}) == [
        "error network.cidr: a quarter of it, 10.88.0.128/26, has 59 addresses; needed for filesystems: 60; "
        "write a larger range, for example 10.88.0.0/16"
    ]


@pytest.mark.parametrize(
    "path", ["/skus", "/usages", "/versions/", "/getRequiredAmlFSSubnetsSize", "/virtualMachines/", "ScaleSets/"]
)
def test_an_account_without_rights(arm: FakeArm, path: str) -> None:
    offer(arm)
    method = "POST" if "AmlFS" in path else "GET"
    arm.fail(method, path, 403, "AuthorizationFailed", "no authorization to read")
    with pytest.raises(ResourceError, match=r"^azure\.subscription: AuthorizationFailed: no authorization to read"):
        judge()
