"""What a project offers, compared with a spec: platforms, presets, fabrics, filesystems and capacity."""

from __future__ import annotations

from typing import Any

import pytest
from grpc import StatusCode

from infra.resources.error import ResourceError
from infra.targets.nebius.client import open_cloud
from infra.targets.nebius.preflight import judge_account, read_account
from tests.infra.targets.nebius.fake_cloud import FakeCloud
from tests.infra.targets.nebius.offers import offer
from tests.infra.targets.nebius.resources import create_all
from tests.infra.targets.nebius.specs import Data, make_spec, spec_data
from tests.infra.targets.rented.issues import format_issues


def judge(**changes: Any) -> list[str]:
    """Return the issues of a spec."""
    spec = make_spec(**changes)
    with open_cloud("nebius.project") as client:
        return format_issues(judge_account(spec, read_account(client, spec)))


def section(**machine: str) -> Data:
    data = spec_data()["nebius"]
    return {"nebius": {**data, "groups": {"gpu": {**data["groups"]["gpu"], **machine}}}}


def test_a_project_that_has_everything(cloud: FakeCloud) -> None:
    offer(cloud, available=2)
    assert judge() == []


def test_platforms_and_presets_that_do_not_exist(cloud: FakeCloud) -> None:
    offer(cloud, available=2)
    assert judge(**section(platform="gpu-h100-smx")) == [
        "error nebius.groups.gpu.platform: 'gpu-h100-smx' is not a platform of the project; "
        "allowed: cpu-d3, gpu-h100-sxm; write `platform: gpu-h100-sxm`"
    ]
    assert judge(**section(preset="8gpu-128vcpu-1700gb")) == [
        "error nebius.groups.gpu.preset: '8gpu-128vcpu-1700gb' is not a preset of 'gpu-h100-sxm'; "
        "allowed: 1gpu-16vcpu-200gb, 8gpu-128vcpu-1600gb; write `preset: 8gpu-128vcpu-1600gb`"
    ]
    assert judge(**section(preset="1gpu-16vcpu-200gb")) == [
        "error nebius.groups.gpu.preset: '1gpu-16vcpu-200gb' of 'gpu-h100-sxm' cannot be in a GPU cluster; "
        "choose a preset that can: 8gpu-128vcpu-1600gb"
    ]


def test_capacity_counts_only_what_is_missing(cloud: FakeCloud) -> None:
    offer(cloud, available=1)
    lack = (
        "warning nebius.groups.gpu.fabric: 'fabric-3' has room for 1 more of gpu-h100-sxm/8gpu-128vcpu-1600gb; "
        "needed: 2; request a higher quota, choose another fabric, or run it later: `up` keeps what it could create"
    )
    assert judge() == [lack]
    # One of the two machines exists already, under the name that the cluster gives it.
    create_all()
    cloud.of_kind("Instance")[0]["metadata"]["name"] = "muster-demo-gpu-2"
    assert judge() == []


def test_numbers_that_are_not_fresh_warn_of_nothing(cloud: FakeCloud) -> None:
    offer(cloud, available=0, state="DATA_STATE_STALE")
    assert judge() == []


def test_a_filesystem_that_does_not_exist(cloud: FakeCloud) -> None:
    offer(cloud, available=2)
    storage = {"shared": {"kind": "existing", "id": "computefilesystem-e00gone"}}
    assert judge(storage=storage) == [
        "error storage.shared.id: 'computefilesystem-e00gone' does not exist, or the account may not see it; "
        "correct the id; `nebius compute filesystem list` shows them"
    ]


def test_an_image_that_does_not_exist(cloud: FakeCloud) -> None:
    offer(cloud, available=2)
    del cloud.answers["Image/Get"]
    assert judge() == [
        "error nebius.image: 'computeimage-e00debian' does not exist, or the account may not see it; "
        "correct the id; `nebius compute image list` shows them"
    ]


def test_an_account_without_rights(cloud: FakeCloud) -> None:
    cloud.fail("Get", "Project", StatusCode.PERMISSION_DENIED, "no access", times=99)
    with pytest.raises(ResourceError, match=r"^nebius\.project: no access\. Fix: ask for the role `editor`"):
        judge()
