"""Pre-flight of machine images: the exact message for each reason why an image is unfit."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bootstrap.bake import digest_contents
from cluster.catalog.instances import instance
from infra.home import Home
from infra.targets.aws.images.baked_images import Record, write_record
from infra.targets.aws.images.planned_images import plan_images
from infra.targets.aws.preflight import images
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues, issue_codes
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

ACCOUNT = "123456789012"
ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann")
ID = "ami-0123456789abcdef0"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
GPU = images.ImageUse("ami", instance("p5.48xlarge"))


def image(**changes: Any) -> dict[str, Any]:
    return {
        "ImageId": ID,
        "State": "available",
        "Architecture": "x86_64",
        "OwnerId": "898082745236",
        "ImageOwnerAlias": "amazon",
        "RootDeviceName": "/dev/sda1",
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 65}}],
        "EnaSupport": True,
        "DeprecationTime": "2027-11-20T00:00:00.000Z",
        **changes,
    }


@pytest.mark.parametrize("changes", [{}, {"ImageOwnerAlias": None, "OwnerId": ACCOUNT}, {"DeprecationTime": None}])
def test_a_fitting_image_has_no_issues(changes: dict[str, Any]) -> None:
    assert format_issues(images.judge(image(**changes), GPU, ACCOUNT, NOW)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"State": "pending"},
            f"error image_state aws.ami: '{ID}' is pending; allowed: available; fix: name another image",
        ),
        (
            {"Architecture": "arm64"},
            f"error image_architecture aws.ami: '{ID}' is for arm64; p5.48xlarge is x86_64; fix: name an image for "
            "x86_64",
        ),
        (
            {"Platform": "windows"},
            f"error image_platform aws.ami: '{ID}' is a Windows image; fix: name an Ubuntu 22.04 image",
        ),
        (
            {"RootDeviceName": "/dev/xvda"},
            f"error image_root aws.ami: '{ID}' has its root disk at /dev/xvda; nodes need it at "
            "/dev/sda1; fix: name an Ubuntu image, whose root disk is /dev/sda1",
        ),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 500}}]},
            f"error image_size aws.ami: '{ID}' needs a root disk of 500 GB; p5.48xlarge gets 200; fix: name a "
            "smaller image",
        ),
        (
            {"EnaSupport": False},
            f"error image_network aws.ami: '{ID}' has no ENA support: instances of this type do not start; "
            "fix: name another image",
        ),
        (
            {"ImageOwnerAlias": None, "OwnerId": "999999999999"},
            f"warning image_owner aws.ami: '{ID}' belongs to account 999999999999, neither Amazon nor account "
            f"{ACCOUNT}; "
            "fix: make sure that you trust it: it runs as root on every machine that starts from it",
        ),
        (
            {"DeprecationTime": "2026-11-19T00:00:00.000Z"},
            f"warning image_old aws.ami: '{ID}' is deprecated since 2026-11-19: it gets no updates; "
            "fix: name a newer one; a change of the image replaces the nodes",
        ),
    ],
    ids=lambda value: value.split(" ")[1] if isinstance(value, str) else "",
)
def test_each_unfit_image_has_its_message(changes: dict[str, Any], message: str) -> None:
    assert format_issues(images.judge(image(**changes), GPU, ACCOUNT, NOW)) == [message]


def check(canned_aws: CannedAws, **aws: Any) -> list[str]:
    return format_issues(images.check_images(Subject(spec(aws={"region": "us-east-1", **aws}), canned_aws.account, ME)))


def test_a_missing_image_is_an_error(canned_aws: CannedAws) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    assert check(canned_aws, ami=ID) == [
        f"error image_missing aws.ami: '{ID}' does not exist in us-east-1, or account {ACCOUNT} may not use it; "
        "fix: name one that `aws ec2 describe-images` lists"
    ]


def test_a_named_image_is_looked_up_and_judged(canned_aws: CannedAws, aws: Moto) -> None:
    """moto's Amazon Linux images have a root disk with another name."""
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    images_of_amazon = aws.client("ec2").describe_images(Owners=["amazon"])["Images"]
    other = next(image["ImageId"] for image in images_of_amazon if image.get("RootDeviceName") == "/dev/xvda")
    issues = images.check_images(Subject(spec(aws={"region": "us-east-1", "ami": other}), canned_aws.account, ME))
    assert ("error", "image_root") in issue_codes(issues)


def test_a_region_without_the_default_images_is_an_error(canned_aws: CannedAws) -> None:
    """moto has neither of the two default images."""
    messages = check(canned_aws)
    assert len(messages) == 2
    path = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    assert (
        f"error image_parameter aws.ami: us-east-1 has no image under {path}; "
        "fix: name your own image with `ami: ami-...`"
    ) in messages
    assert any(line.endswith("fix: name your own image with `plain_ami: ami-...`") for line in messages)


def test_controller_and_login_have_a_smaller_disk(canned_aws: CannedAws) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    large = image(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 150}}])
    canned_aws.answer("ec2", "DescribeImages", {"Images": [large]})
    assert check(canned_aws, ami=ID) == []
    assert check(canned_aws, plain_ami=ID) == [
        f"error image_size aws.plain_ami: '{ID}' needs a root disk of 150 GB; m7i.xlarge gets 100; "
        "fix: name a smaller image"
    ]


def test_the_smallest_root_disk_must_hold_the_image(canned_aws: CannedAws) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    large = image(BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 300}}])
    canned_aws.answer("ec2", "DescribeImages", {"Images": [large]})
    groups = {
        "big": {"instance_type": "p5.48xlarge", "count": 1, "root_gb": 500},
        "small": {"instance_type": "g6.8xlarge", "count": 1},
    }
    described = spec(groups=groups, aws={"region": "us-east-1", "ami": ID})
    assert format_issues(images.check_images(Subject(described, canned_aws.account, ME))) == [
        f"error image_size aws.ami: '{ID}' needs a root disk of 300 GB; g6.8xlarge gets 200; fix: name a smaller image"
    ]


BAKED = {"muster.image": "gpu", "muster.slurm": "26.05", "muster.roles": "compute"}
CURRENT = {"muster.contents": digest_contents(plan_images(spec())[1].contents)}


def baked(**tags: str) -> dict[str, Any]:
    return image(OwnerId=ACCOUNT, ImageOwnerAlias=None, Tags=[{"Key": k, "Value": v} for k, v in tags.items()])


@pytest.mark.parametrize(
    ("tags", "messages"),
    [
        (BAKED | CURRENT, []),
        (
            BAKED | CURRENT | {"muster.slurm": "24.11"},
            [
                f"error image_slurm aws.ami: '{ID}' has Slurm 24.11; software.slurm is 26.05; "
                'fix: write `software: {slurm: "24.11"}`, '
                "name one that `muster image build` has built for this spec, or remove the property to use AWS's image"
            ],
        ),
        (
            BAKED | CURRENT | {"muster.roles": "controller login"},
            [
                f"error image_roles aws.ami: '{ID}' was built for controller, login, not for compute, which would "
                "start from it; fix: name one that `muster image build` has built for this spec, or remove the "
                "property to use AWS's image"
            ],
        ),
        (
            BAKED | {"muster.contents": "0"},
            [
                f"warning image_stale aws.ami: '{ID}' is of another version of muster or for another spec; nodes "
                "install what it lacks at boot; fix: build a new one with `muster image refresh`"
            ],
        ),
    ],
)
def test_a_baked_image_must_have_the_contents(canned_aws: CannedAws, tags: dict[str, str], messages: list[str]) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    canned_aws.answer("ec2", "DescribeImages", {"Images": [baked(**tags)]})
    assert check(canned_aws, ami=ID) == messages


def test_the_image_of_a_group_is_checked_where_it_is_named(canned_aws: CannedAws) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    canned_aws.answer("ec2", "DescribeImages", {"Images": [image(Architecture="arm64")]})
    fields = {"instance_type": "p5.48xlarge", "count": 1}
    subject = Subject(spec(groups={"a": fields, "b": {**fields, "image": ID}}), canned_aws.account, ME)
    assert format_issues(images.check_images(subject)) == [
        f"error image_architecture groups.b.image: '{ID}' is for arm64; p5.48xlarge is x86_64; "
        "fix: name an image for x86_64"
    ]


CPU = {"instance_type": "m7i.large", "count": 1}
PLAIN = plan_images(spec(groups={"cpu": CPU}))[0].contents


@pytest.mark.parametrize(
    ("tags", "messages"),
    [
        # Images of a refresh are for all machines without GPUs; only compute nodes of this group start from it.
        ({"muster.roles": " ".join(PLAIN.roles), "muster.contents": digest_contents(PLAIN)}, []),
        (
            {"muster.roles": "controller login"},
            [
                f"error image_roles groups.cpu.image: '{ID}' was built for controller, login, not for compute, which "
                "would start from it; fix: name one that `muster image build` has built for this spec, or remove the "
                "property to use the image of the other groups"
            ],
        ),
        (
            {"muster.roles": "compute of-a-later-version", "muster.contents": "0"},
            [
                f"warning image_stale groups.cpu.image: '{ID}' is of another version of muster or for another spec; "
                "nodes install what it lacks at boot; fix: build a new one with `muster image refresh`; if another "
                "cluster built this one, remove the property first"
            ],
        ),
    ],
)
def test_the_image_of_a_group_is_judged_by_its_compute_nodes(
    canned_aws: CannedAws, tags: dict[str, str], messages: list[str]
) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    canned_aws.answer(
        "ec2", "DescribeImages", {"Images": [baked(**{"muster.image": "plain", "muster.slurm": "26.05"}, **tags)]}
    )
    subject = Subject(spec(groups={"cpu": {**CPU, "image": ID}}), canned_aws.account, ME)
    assert format_issues(images.check_images(subject)) == messages


def test_the_image_of_the_section_is_not_judged_by_groups_with_their_own(canned_aws: CannedAws) -> None:
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    other = "ami-0123456789abcdef1"
    described = spec(aws={"region": "us-east-1", "plain_ami": ID}, groups={"cpu": {**CPU, "image": other}})
    contents = plan_images(described)[0].contents
    assert contents.roles == ("controller", "login")
    tags = {"muster.slurm": "26.05", "muster.roles": "controller login", "muster.contents": digest_contents(contents)}
    canned_aws.answer("ec2", "DescribeImages", {"Images": [baked(**{"muster.image": "plain"}, **tags)]})
    issues = list(images.check_images(Subject(described, canned_aws.account, ME)))
    assert [(issue.code, issue.where) for issue in issues] == [("image_roles", "groups.cpu.image")]


def test_the_image_of_a_login_node_with_gpus_is_judged_by_it(canned_aws: CannedAws) -> None:
    """The only group with GPUs has an image of its own."""
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    canned_aws.answer("ec2", "DescribeImages", {"Images": [baked(**BAKED, **CURRENT)]})
    groups = {"gpu": {"instance_type": "p5.48xlarge", "count": 1, "image": ID}}
    section = {"region": "us-east-1", "ami": ID}
    described = spec(login={"instance_type": "g6.xlarge"}, groups=groups, aws=section)
    issues = list(images.check_images(Subject(described, canned_aws.account, ME)))
    assert [(issue.code, issue.where) for issue in issues] == [("image_roles", "aws.ami")]
    assert "was built for compute, not for login" in issues[0].message


def test_an_image_of_another_region_is_named(
    canned_aws: CannedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    write_record(Home.of(os.environ), Record(ID, "eu-west-1", {}))
    canned_aws.answer("ssm", "GetParameter", {"Parameter": {"Value": ID}})
    assert check(canned_aws, ami=ID) == [
        f"error image_region aws.ami: '{ID}' is an image of eu-west-1; allowed: an image of us-east-1; "
        "fix: name one that `aws ec2 describe-images` lists"
    ]
