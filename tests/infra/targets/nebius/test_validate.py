"""Every rule on target nebius, with its exact message."""

from __future__ import annotations

import pytest

from infra.validate import validate
from tests.infra.targets.nebius.specs import Data, make_spec, spec_data
from tests.infra.targets.rented.issues import format_issues, list_bad_settings

SECTION: Data = spec_data()["nebius"]
GROUP: Data = SECTION["groups"]["gpu"]
GPU_GROUP: Data = spec_data()["groups"]["gpu"]


def section(**changes: object) -> Data:
    return {"nebius": {**SECTION, **changes}}


BAD = list_bad_settings("nebius", SECTION) | {
    "no section": (
        {"nebius": None},
        "error nebius: required for target nebius, but missing; "
        "add `nebius:` with `project`, `ssh_from` and `groups`; docs/nebius.md has an example",
    ),
    "group without machine": (
        section(groups={"gpus": GROUP}),
        "error nebius.groups.gpus: 'gpus' is not a node group; allowed: gpu; rename it to `gpu`\n"
        "error nebius.groups: node group 'gpu' has no machine; "
        "add `gpu: {platform: PLATFORM, preset: PRESET}` under `nebius.groups`",
    ),
    "other number of GPUs": (
        {"groups": {"gpu": {**GPU_GROUP, "gpus": {"count": 4, "kind": "real"}}}},
        "error groups.gpu.gpus.count: 4, but preset '8gpu-128vcpu-1600gb' of 'gpu-h100-sxm' has 8; "
        "write `gpus: {count: 8, kind: real}`, or choose another preset",
    ),
    "no fabric": (
        section(groups={"gpu": {**GROUP, "fabric": None}}),
        "error nebius.groups.gpu.fabric: required for fabric infiniband, but missing; "
        "write the fabric in which your project has capacity, for example `fabric: fabric-3`",
    ),
    "fabric of a group with tcp": (
        {"groups": {"gpu": {**GPU_GROUP, "fabric": "tcp"}}},
        "error nebius.groups.gpu.fabric: 'fabric-3' has no effect: the group's fabric is tcp; "
        "write `fabric: infiniband` under `groups.gpu`",
    ),
    "small preset on a fabric": (
        {
            **section(groups={"gpu": {**GROUP, "preset": "1gpu-16vcpu-200gb"}}),
            "groups": {"gpu": {**GPU_GROUP, "gpus": {"count": 1, "kind": "real"}}},
        },
        "error nebius.groups.gpu.preset: '1gpu-16vcpu-200gb' cannot be on an InfiniBand fabric; "
        "allowed: presets with 8 GPUs; choose such a preset, or write `fabric: tcp`",
    ),
    "filesystem without size": (
        {"storage": {"shared": {"kind": "volume"}}},
        "error storage.shared.size_gb: required, but missing; write for example `size_gb: 1024`",
    ),
    "existing filesystem without id": (
        {"storage": {"shared": {"kind": "existing"}}},
        "error storage.shared.id: required for kind existing, but missing; "
        "write the id of the shared filesystem, for example `id: computefilesystem-e00example`",
    ),
}


@pytest.mark.parametrize(("changes", "expected"), BAD.values(), ids=BAD)
def test_issue(changes: Data, expected: str) -> None:
    assert "\n".join(format_issues(validate(make_spec(**changes)))) == expected


def test_valid_spec_has_no_issues() -> None:
    assert list(validate(make_spec())) == []
