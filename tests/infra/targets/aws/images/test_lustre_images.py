"""The second fallback for Lustre: without a kernel to install, a new cluster starts from images that muster built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import boto3
import pytest
from moto.ec2 import ec2_backends
from moto.kms import kms_backends

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.home import Home
from infra.targets.aws import account, preflight
from infra.targets.aws.build.cluster import _lookups
from infra.targets.aws.build.resolved import ResolvedProvider
from infra.targets.aws.fallback_images import FILE, read_fallbacks, store_fallbacks
from infra.targets.aws.images import build_images
from infra.targets.aws.images.baked_images import find_client_kernel
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.checks import Check, PreflightOptions, PreflightResult, run_preflight
from infra.targets.aws.preflight.lustre_clients import check_lustre_clients
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.rehearse.moto_gaps import publish_image
from infra.targets.aws.rehearse.moto_server import ACCOUNT, REGION
from infra.targets.aws.target import AwsTarget
from muster.commands.screen import get_quiet_console
from tests.infra.targets.aws.images.test_build_images import HERE, Machine, write_state
from tests.infra.targets.aws.preflight.test_lustre_clients import CLIENTS, LUSTRE, UBUNTU, index
from tests.infra.targets.aws.specs import spec
from tests.moto_server import Moto

KERNEL = "6.8.0-1041-aws"
ZONE = f"{REGION}a"
SPEC = spec(storage=LUSTRE)
NEWEST_ONLY = index("linux-image-6.8.0-1045-aws", newest="6.8.0-1045-aws")


def build(home: Home, kernel: str, /, **changes: Any) -> dict[str, str]:
    """Build both images, on machines whose kernel has a Lustre client, and return their ids by kind."""
    packages = {"slurm-smd": "24.11.5-1"} | ({f"lustre-client-modules-{kernel}": "2.15"} if kernel else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "packages", packages)
        built = build_images.build_images(spec(storage=LUSTRE, **changes), home, HERE, get_quiet_console())
    return {"gpu-x86_64": built["ami"].id, "plain-x86_64": built["plain_ami"].id}


def check(ubuntu: str = NEWEST_ONLY, *, exists: bool = False, clients: str = CLIENTS, **changes: Any) -> list[Issue]:
    subject = Subject(
        spec(**{"storage": LUSTRE, **changes}),
        Account(boto3.Session(), REGION),
        Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann"),
        exists=exists,
    )

    return list(check_lustre_clients(subject, fetch_from(ubuntu, clients)))


def fetch_from(ubuntu: str, clients: str = CLIENTS) -> Callable[[str], str]:
    return lambda url: clients if "fsx" in url else ubuntu if "-updates" in url else ""


@pytest.mark.parametrize("clients", [CLIENTS, index("lustre-client-utils")])
def test_a_new_cluster_starts_from_the_newest_images_with_a_client(
    home: Home,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
    clients: str,
) -> None:
    build(home, "6.8.0-1039-aws")
    monkeypatch.setattr(build_images, "datetime", Tomorrow)
    images = build(home, KERNEL)
    (issue,) = check(clients=clients)
    assert (issue.level, issue.code) == ("warning", "lustre_image")
    assert issue.message.endswith(
        "; machines start from images that muster has built: "
        f"{images['plain-x86_64']} with {KERNEL} (plain-x86_64), {images['gpu-x86_64']} with {KERNEL} (gpu-x86_64)"
    )
    assert issue.fix == (
        "keep these images while the cluster exists, which stays with them; "
        "or name others with `aws.plain_ami` and `aws.ami`"
    )
    store_fallbacks(home.stack("s"), images)
    # moto does not offer every type; with a zone, none is asked for.
    zoned = spec(storage=LUSTRE, aws={"region": REGION, "zones": [ZONE]})
    created = ResolvedProvider().create(vars(_lookups(zoned, "s")))
    assert created.outs
    assert created.outs["images"] == images
    # Another stack, and one whose spec names images, are not affected.
    assert set(_lookups(spec(storage=LUSTRE), "other").parameters.values()).isdisjoint(images.values())
    named = spec(storage=LUSTRE, aws={"region": REGION, "ami": "ami-1", "plain_ami": "ami-2"})
    assert _lookups(named, "s").parameters == {}


class Tomorrow(datetime):
    """A clock of images that are built later."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return super().now(tz).replace(year=2100)


def test_only_up_stores_the_choice_and_ends_it(
    home: Home,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = build(home, KERNEL)
    stack, target, console = home.stack("s"), AwsTarget(), get_quiet_console()
    monkeypatch.setattr(account, "find_account", lambda _spec: Account(boto3.Session(), REGION))
    kernels = [NEWEST_ONLY]

    def run(described: ClusterSpec, caller: Account, options: PreflightOptions) -> PreflightResult:
        only = (Check("Lustre clients", "storage", partial(check_lustre_clients, fetch=fetch_from(kernels[0]))),)
        return run_preflight(described, caller, replace(options, checks=only))

    monkeypatch.setattr(preflight, "run_preflight", run)
    target.preflight(SPEC, [], stack, console)
    assert read_fallbacks(stack) == {}
    target.clear(SPEC, [error("x", "name", "m", "f")], stack, console, full=True)
    assert read_fallbacks(stack) == {}
    target.clear(SPEC, [], stack, console, full=True)
    assert read_fallbacks(stack) == images
    assert sorted(target.unnamed_images(stack, SPEC)) == sorted(images.values())
    kernels[0] = UBUNTU
    target.preflight(SPEC, [], stack, console)
    assert read_fallbacks(stack) == images
    target.clear(SPEC, [], stack, console, full=True)
    assert not (stack.folder / FILE).exists()
    store_fallbacks(stack, images)
    target.clear(SPEC, [error("x", "name", "m", "f")], stack, console, full=False)
    assert read_fallbacks(stack) == images
    target.clear(SPEC, [], stack, console, full=False)
    assert not (stack.folder / FILE).exists()
    store_fallbacks(stack, images)
    target.forget_choices(stack)
    assert not (stack.folder / FILE).exists()


def test_a_cluster_that_exists_keeps_its_images(home: Home, aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    images = build(home, KERNEL)
    assert [(issue.level, issue.code) for issue in check(exists=True)] == [("warning", "lustre_kernel")]
    stack = home.stack("s")
    store_fallbacks(stack, images)
    write_state(stack, images)
    monkeypatch.setattr(account, "find_account", lambda _spec: Account(boto3.Session(), REGION))
    monkeypatch.setattr(preflight, "run_preflight", lambda *_: PreflightResult(Identity(ACCOUNT, ""), (), 0.0))
    for full in (True, False):
        AwsTarget().clear(SPEC, [], stack, get_quiet_console(), full=full)
        assert read_fallbacks(stack) == images


def test_an_image_of_an_older_version_has_its_kernel_in_the_record(home: Home, aws: Moto) -> None:
    images = build(home, KERNEL)
    tags = [{"Key": "muster.lustre", "Value": KERNEL}]
    aws.client("ec2").delete_tags(Resources=list(images.values()), Tags=tags)
    assert [issue.code for issue in check()] == ["lustre_image"]


def test_the_error_lists_the_images_that_were_tried(home: Home, aws: Moto) -> None:
    (nothing,) = check()
    assert (nothing.level, nothing.code) == ("error", "lustre_kernel")
    assert nothing.message.endswith(
        "account and region have no plain-x86_64 image that muster has built; "
        "account and region have no gpu-x86_64 image that muster has built"
    )
    assert nothing.fix == "set `aws.ami` and `aws.plain_ami` to images that have a client"
    without_client = build(home, "")
    other_release = build(home, KERNEL, software={"slurm": "26.05"})
    (issue,) = check(software={"slurm": "24.11"})
    assert (issue.level, issue.code) == ("error", "lustre_kernel")
    for kind in ("plain-x86_64", "gpu-x86_64"):
        assert f"no {kind} image that muster has built fits: " in issue.message
        assert f"'{without_client[kind]}' has no Lustre client" in issue.message
        assert f"'{other_release[kind]}' has Slurm 26.05; software.slurm is 24.11" in issue.message


def encrypt(images: dict[str, str], key: str) -> None:
    """Let the disks of images have a key; moto gives them none."""
    backend = ec2_backends[ACCOUNT][REGION]
    for image in images.values():
        snapshot = backend.amis[image].ebs_snapshot
        snapshot.encrypted, snapshot.kms_key_id = True, key


def test_an_image_must_have_a_key_that_machines_may_use(home: Home, aws: Moto) -> None:
    images, kms = build(home, KERNEL), aws.client("kms")
    own_key = kms.create_key()["KeyMetadata"]["Arn"]
    encrypt(images, own_key)
    (issue,) = check()
    assert (issue.level, issue.code) == ("error", "lustre_kernel")
    for image in images.values():
        assert f"'{image}' is encrypted with {own_key}, which is neither aws.kms_key nor AWS's key" in issue.message
    (issue,) = check(aws={"region": REGION, "kms_key": own_key})
    assert issue.code == "lustre_image"
    other_key = own_key.rpartition("/")[0] + "/0123abcd-0123-4567-89ab-0123456789ab"
    (issue,) = check(aws={"region": REGION, "kms_key": other_key})
    assert issue.code == "lustre_kernel"
    encrypt(images, other_key)
    (issue,) = check()
    assert (issue.code, f"is encrypted with {other_key}" in issue.message) == ("lustre_kernel", True)
    default = kms.create_key()["KeyMetadata"]
    kms_backends[ACCOUNT][REGION].keys[default["KeyId"]].key_manager = "AWS"
    encrypt(images, default["Arn"])
    (issue,) = check()
    assert issue.code == "lustre_image"


def test_an_image_must_have_the_same_source(home: Home, aws: Moto) -> None:
    """An image that was built from somebody's own image may contain anything."""
    base = publish_image("/own/base")
    images = build(home, KERNEL, aws={"region": REGION, "ami": base})
    (issue,) = check()
    assert (issue.level, issue.code) == ("error", "lustre_kernel")
    path = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    assert f"'{images['gpu-x86_64']}' was built from {base}, not from {path}" in issue.message
    assert images["plain-x86_64"] not in issue.message


def test_the_kernel_is_that_of_the_client() -> None:
    assert find_client_kernel([f"lustre-client-modules-{KERNEL}", "lustre-client-modules-aws", "linux-aws"]) == KERNEL
    assert find_client_kernel(["linux-image-6.8.0-1041-aws"]) == ""
