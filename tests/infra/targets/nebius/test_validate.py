"""Every rule on target nebius, with its exact message."""

from __future__ import annotations

import pytest

from infra.targets.rented.rules import ANYWHERE
from infra.validate import validate
from tests.infra.targets.nebius.specs import Data, make_spec, spec_data

SECTION: Data = spec_data()["nebius"]
GROUP: Data = SECTION["groups"]["gpu"]
GPU_GROUP: Data = spec_data()["groups"]["gpu"]


def section(**changes: object) -> Data:
    return {"nebius": {**SECTION, **changes}}


BAD = {
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
    "no address range": (
        section(ssh_from=["203.0.113.7/24"]),
        "error nebius.ssh_from[0]: '203.0.113.7/24' is not an IPv4 address range: 203.0.113.7/24 has host bits set; "
        "write for example 203.0.113.7/32, your public address and /32",
    ),
    "SSH for everybody": (
        section(ssh_from=[ANYWHERE]),
        "warning nebius.ssh_from[0]: '0.0.0.0/0' lets everybody connect to SSH; only the keys protect the machines; "
        "write the address ranges of those who log in",
    ),
    "no egress": (
        {"network": {"egress": False}},
        "error network.egress: false is not possible: bootstrap installs packages from the internet; remove it",
    ),
    "small network": (
        {"network": {"cidr": "10.88.0.0/26"}},
        "error network.cidr: '10.88.0.0/26' is too small; allowed: /16 to /24; write a range of at least /24",
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
    issues = validate(make_spec(**changes))
    assert "\n".join(f"{i.level} {i.where}: {i.message}; {i.fix}" for i in issues) == expected


def test_valid_spec_has_no_issues() -> None:
    assert list(validate(make_spec())) == []
