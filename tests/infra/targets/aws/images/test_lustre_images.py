"""The second fallback for Lustre: without a kernel to install, a new cluster starts from images that muster built."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from typing import Any

import boto3
import pytest

from cluster.spec.issue import Issue
from infra.home import Home
from infra.targets.aws.build.cluster import _lookups
from infra.targets.aws.build.resolved import ResolvedProvider
from infra.targets.aws.fallback_images import FILE, read_fallbacks
from infra.targets.aws.images import build_images
from infra.targets.aws.images.baked_images import find_client_kernel
from infra.targets.aws.node import parameters
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.lustre_clients import check_lustre_clients
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.rehearse.moto_server import ACCOUNT, REGION
from muster.commands.screen import get_quiet_console
from tests.infra.targets.aws.images.test_build_images import BUCKET, HERE, home  # noqa: F401  # fixture
from tests.infra.targets.aws.preflight.test_lustre_clients import CLIENTS, LUSTRE, UBUNTU, index
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto, aws, moto  # noqa: F401  # fixtures

KERNEL = "6.8.0-1041-aws"
ZONE = f"{REGION}a"
NEWEST_ONLY = index("linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws")


def build(home: Home, aws: Moto, kernel: str, **changes: Any) -> dict[str, str]:  # noqa: F811
    """Build both images, on machines whose kernel has a Lustre client, and return their ids by kind."""
    packages = {"slurm-smd": "24.11.5-1"} | ({f"lustre-client-modules-{kernel}": "2.15"} if kernel else {})
    for purpose in ("gpu", "plain"):
        key = parameters.logs(parameters.builder(purpose), "packages")
        aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=gzip.compress(json.dumps(packages).encode()))
    built = build_images.build_images(spec(storage=LUSTRE, **changes), home, HERE, get_quiet_console())
    return {"gpu-x86_64": built["ami"].id, "plain-x86_64": built["plain_ami"].id}


def check(ubuntu: str = NEWEST_ONLY, *, exists: bool = False, clients: str = CLIENTS, **changes: Any) -> list[Issue]:
    subject = Subject(
        spec(**{"storage": LUSTRE, **changes}),
        Account(boto3.Session(), REGION),
        Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann"),
        exists=exists,
    )

    def fetch(url: str) -> str:
        return clients if "fsx" in url else ubuntu if "-updates" in url else ""

    return list(check_lustre_clients(subject, fetch))


@pytest.mark.parametrize("clients", [CLIENTS, index("lustre-client-utils")])
def test_a_new_cluster_starts_from_the_newest_images_with_a_client(
    home: Home,  # noqa: F811
    aws: Moto,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    clients: str,
) -> None:
    build(home, aws, "6.8.0-1039-aws")
    monkeypatch.setattr(build_images, "datetime", Tomorrow)
    images = build(home, aws, KERNEL)
    (issue,) = check(clients=clients)
    assert (issue.level, issue.code) == ("warning", "lustre_image")
    assert issue.message.endswith(
        "; machines start from images that muster has built: "
        f"{images['plain-x86_64']} with {KERNEL} (plain-x86_64), {images['gpu-x86_64']} with {KERNEL} (gpu-x86_64)"
    )
    assert issue.fix == "name others with `aws.plain_ami` and `aws.ami` if these should not be used"
    # moto does not offer every type; with a zone, none is asked for.
    created = ResolvedProvider().create(vars(_lookups(spec(storage=LUSTRE, aws={"region": REGION, "zones": [ZONE]}))))
    assert created.outs
    assert created.outs["images"] == images
    # A cluster with another name, and one whose spec names images, are not affected.
    assert set(_lookups(spec(storage=LUSTRE, name="other")).parameters.values()).isdisjoint(images.values())
    assert _lookups(spec(storage=LUSTRE, aws={"region": REGION, "ami": "ami-1", "plain_ami": "ami-2"})).parameters == {}


class Tomorrow(datetime):
    """A clock of images that are built later."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return super().now(tz).replace(year=2100)


def test_the_choice_ends_when_there_is_a_kernel_to_install(home: Home, aws: Moto) -> None:  # noqa: F811
    images = build(home, aws, KERNEL)
    check()
    assert read_fallbacks("demo", REGION) == images
    assert [issue.code for issue in check(UBUNTU)] == ["lustre_kernel"]
    assert read_fallbacks("demo", REGION) == {}
    check()
    check(storage={"shared": {"kind": "efs"}})
    assert read_fallbacks("demo", REGION) == {}


def test_a_cluster_that_exists_keeps_its_images(home: Home, aws: Moto) -> None:  # noqa: F811
    build(home, aws, KERNEL)
    assert [(issue.level, issue.code) for issue in check(exists=True)] == [("warning", "lustre_kernel")]
    assert not (home.root / FILE).exists()


def test_an_image_of_an_older_version_has_its_kernel_in_the_record(home: Home, aws: Moto) -> None:  # noqa: F811
    images = build(home, aws, KERNEL)
    tags = [{"Key": "muster.lustre", "Value": KERNEL}]
    aws.client("ec2").delete_tags(Resources=list(images.values()), Tags=tags)
    assert [issue.code for issue in check()] == ["lustre_image"]


def test_the_error_lists_the_images_that_were_tried(home: Home, aws: Moto) -> None:  # noqa: F811
    (nothing,) = check()
    assert (nothing.level, nothing.code) == ("error", "lustre_kernel")
    assert nothing.message.endswith(
        "account and region have no plain-x86_64 image that muster has built; "
        "account and region have no gpu-x86_64 image that muster has built"
    )
    assert nothing.fix == "set `aws.ami` and `aws.plain_ami` to images that have a client"
    without_client = build(home, aws, "")
    other_release = build(home, aws, KERNEL, software={"slurm": "26.05"})
    (issue,) = check(software={"slurm": "24.11"})
    assert (issue.level, issue.code) == ("error", "lustre_kernel")
    for kind in ("plain-x86_64", "gpu-x86_64"):
        assert f"no {kind} image that muster has built fits: " in issue.message
        assert f"'{without_client[kind]}' has no Lustre client" in issue.message
        assert f"'{other_release[kind]}' has Slurm 26.05; software.slurm is 24.11" in issue.message
    assert not (home.root / FILE).exists()


def test_the_kernel_is_that_of_the_client() -> None:
    assert find_client_kernel([f"lustre-client-modules-{KERNEL}", "lustre-client-modules-aws", "linux-aws"]) == KERNEL
    assert find_client_kernel(["linux-image-6.8.0-1041-aws"]) == ""
