"""Every rule on target azure, with its exact message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.targets.azure.sizes import read_sizes
from infra.targets.azure.target import AzureTarget
from infra.targets.registry import load_spec
from infra.validate import validate
from infra.validate.update import violations
from tests.infra.running_jobs import Jobs
from tests.infra.targets.azure.specs import GALLERY_IMAGE, Data, make_spec, spec_data
from tests.infra.targets.rented.issues import format_issues, list_bad_settings

REPO = Path(__file__).parents[4]
SECTION: Data = spec_data()["azure"]
GPU_GROUP: Data = spec_data()["groups"]["gpu"]
SIZES = ", ".join(read_sizes())
FABRICS = "Standard_ND96asr_v4, Standard_ND96amsr_A100_v4, Standard_ND96isr_H100_v5, Standard_ND96isr_H200_v5"


def section(**changes: object) -> Data:
    return {"azure": {**SECTION, **changes}}


BAD = list_bad_settings("azure", SECTION) | {
    "no section": (
        {"azure": None},
        "error azure: required for target azure, but missing; "
        "add `azure:` with `subscription`, `region`, `ssh_from`, `image` and `groups`, as in docs/azure.md",
    ),
    "group without machine": (
        section(groups={"gpus": {"size": "Standard_D4s_v5"}}),
        "error azure.groups.gpus: 'gpus' is not a node group; allowed: gpu; rename it to `gpu`\n"
        "error azure.groups: node group 'gpu' has no machine; add `gpu: {size: SIZE}` under `azure.groups`",
    ),
    "unknown size": (
        section(controller={"size": "Standard_D8s_v6"}),
        f"error azure.controller.size: 'Standard_D8s_v6' is not a known size; allowed: {SIZES}; "
        "write `size: Standard_D8s_v5`",
    ),
    "unknown size with GPUs": (
        section(groups={"gpu": {"size": "Standard_D16s_v6"}}),
        f"error azure.groups.gpu.size: 'Standard_D16s_v6' is not a known size; allowed: {SIZES}; "
        "write `size: Standard_ND96asr_v4`",
    ),
    "other number of GPUs": (
        {"groups": {"gpu": {**GPU_GROUP, "gpus": {"count": 4, "kind": "real"}}}},
        "error groups.gpu.gpus.count: 4, but 'Standard_ND96isr_H100_v5' has 8; "
        "write `gpus: {count: 8, kind: real}`, or choose another size",
    ),
    "size without InfiniBand": (
        {
            **section(groups={"gpu": {"size": "Standard_D16s_v5"}}),
            "groups": {"gpu": {"count": 2, "fabric": "infiniband"}},
        },
        f"error azure.groups.gpu.size: 'Standard_D16s_v5' has no InfiniBand; allowed: {FABRICS}; "
        "choose one of those, or write `fabric: tcp` under `groups.gpu`",
    ),
    "more machines than a placement group has": (
        {"groups": {"gpu": {**GPU_GROUP, "count": 101}}},
        "error groups.gpu.count: 101, but a scale set with fabric infiniband has at most 100 machines; "
        "make the group smaller, or make two of it",
    ),
    "no image": (
        section(image="ubuntu-hpc"),
        "error azure.image: 'ubuntu-hpc' is neither PUBLISHER:OFFER:SKU:VERSION nor the id of a gallery's image "
        "version; write the id of a gallery's image version that has Slurm (docs/azure.md); "
        "`az sig image-version list` lists versions",
    ),
    "latest image": (
        section(image="microsoft-dsvm:ubuntu-hpc:2404:latest"),
        "error azure.image: version 'latest' changes, so that machines of one cluster could differ; "
        "write a version; `az vm image list --all` lists them",
    ),
    "image without Slurm": (
        section(image="Microsoft-DSVM:ubuntu-hpc:2404:24.04.2025091701"),
        "warning azure.image: 'Microsoft-DSVM:ubuntu-hpc:2404:24.04.2025091701' has no Slurm of a release that muster "
        "sets up, so machines end with an error; install Slurm on it, and write the id of a gallery's image version "
        "that has Slurm (docs/azure.md)",
    ),
    "uid of Azure's account": (
        {"users": {"ann": {"uid": 1000}, "bob": {"uid": 2000}}},
        "error users.ann.uid: 1000 is the uid of 'clusteradmin', the account that Azure creates on every machine; "
        "write `uid: 2001`",
    ),
    "name of Azure's account": (
        {"users": {"clusteradmin": {"uid": 2000}}},
        "error users.clusteradmin: 'clusteradmin' is the account that Azure creates on every machine; "
        "choose another name",
    ),
    "filesystem without size": (
        {"storage": {"shared": {"kind": "volume"}}},
        "error storage.shared.size_gb: required, but missing; write for example `size_gb: 8192`",
    ),
    "capacity between steps": (
        {"storage": {"shared": {"kind": "volume", "size_gb": 9000}}},
        "error storage.shared.size_gb: 9000 is not a capacity of AMLFS-Durable-Premium-250; "
        "allowed: multiples of 8192 (8 TiB) up to 131072; write for example `size_gb: 8192`",
    ),
    "NFS that should outlive its server": (
        {"storage": {"shared": {"kind": "nfs"}}},
        "error storage.shared.keep: true is not possible for kind 'nfs': its files are on the controller's disk; "
        "write `keep: false`, or `kind: volume`",
    ),
}


@pytest.mark.parametrize(("changes", "expected"), BAD.values(), ids=BAD)
def test_issue(changes: Data, expected: str) -> None:
    assert "\n".join(format_issues(validate(make_spec(**changes)))) == expected


def test_valid_specs_have_no_issues() -> None:
    assert list(validate(make_spec())) == []
    assert list(validate(make_spec(**section(image=GALLERY_IMAGE)))) == []
    assert list(validate(make_spec(storage={"shared": {"kind": "nfs", "keep": False}}))) == []


def test_a_filesystem_is_never_replaced_by_a_larger_one() -> None:
    larger = make_spec(storage={"shared": {"kind": "volume", "size_gb": 16384, "keep": False}})
    (issue,) = AzureTarget().change_issues(make_spec(), larger)
    assert (issue.where, issue.message) == (
        "storage.shared.size_gb",
        "16384 would replace the filesystem of 8192 GB and delete its data",
    )
    assert list(AzureTarget().change_issues(make_spec(), make_spec())) == []


def test_replacing_the_controller_names_the_files_that_it_serves() -> None:
    shared = {"shared": {"kind": "nfs", "keep": False}}
    new = make_spec(storage=shared, azure={**SECTION, "controller": {"size": "Standard_D16s_v5"}})
    issue, *_others = violations(make_spec(storage=shared), new, Jobs({}))
    assert issue.message == (
        "the controller would be replaced: the job queue, the accounting history and the files of storage 'shared' "
        "are lost"
    )


def test_the_example_in_the_docs_is_valid() -> None:
    page = (REPO / "docs" / "azure.md").read_text()
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert list(validate(load_spec(yaml.safe_load(example)))) == []
