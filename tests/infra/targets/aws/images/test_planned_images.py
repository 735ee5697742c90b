"""The images of a spec: one for each field that can name one, for the roles that start from it."""

from __future__ import annotations

from infra.targets.aws.images.planned_images import plan_images
from infra.targets.aws.target import AwsTarget
from infra.targets.mixins import MachineImage
from infra.targets.registry import read_spec
from tests.harness import REPO
from tests.infra.targets.aws.specs import spec


def test_gpu_nodes_and_permanent_machines_have_an_image_each() -> None:
    plain, gpu = plan_images(spec())
    assert (plain.field, plain.contents.roles) == ("plain_ami", ("controller", "login"))
    assert (gpu.field, gpu.contents.roles) == ("ami", ("compute",))
    assert "deeplearning" in gpu.parameter
    assert "canonical" in plain.parameter
    # A GPU costs a hundred times as much, and nothing that is installed needs one.
    assert {plain.builder_type, gpu.builder_type} == {"m7i.xlarge"}


def test_groups_without_gpus_share_the_image_of_the_permanent_machines() -> None:
    groups = {"cpu": {"instance_type": "m7i.large", "count": 1}}
    (plain,) = plan_images(spec(groups=groups, login={"enabled": False}))
    assert plain.contents.roles == ("controller", "compute")


def test_login_node_with_gpus_starts_from_their_image() -> None:
    own, p5 = "ami-0123456789abcdef0", {"instance_type": "p5.48xlarge", "count": 1}
    login = {"instance_type": "g6.xlarge"}
    plain, gpu = plan_images(spec(login=login, groups={"gpu": {**p5, "image": own}}))
    assert (plain.field, plain.contents.roles) == ("plain_ami", ("controller",))
    assert (gpu.field, gpu.contents.roles) == ("ami", ("login",))
    plain, gpu = plan_images(spec(login=login, groups={"gpu": p5}))
    assert (plain.contents.roles, gpu.contents.roles) == (("controller",), ("login", "compute"))


def test_contents_follow_the_storage_and_the_release() -> None:
    lustre = read_spec(REPO / "stacks/Pulumi.aws-p5en-lustre.yaml")
    assert [image.contents.filesystems for image in plan_images(lustre)] == [("efs", "lustre")] * 2
    (plain, _) = plan_images(spec(software={"slurm": "26.05"}))
    assert (plain.contents.slurm, plain.contents.filesystems) == ("26.05", ("efs",))


def test_an_image_that_the_spec_names_is_the_base() -> None:
    own = "ami-0123456789abcdef0"
    plain, gpu = plan_images(spec(aws={"region": "us-east-1", "ami": own}))
    assert (plain.own_image, gpu.own_image) == (None, own)


def test_no_image_is_built_for_a_group_that_has_its_own() -> None:
    own, p5, cpu = "ami-0123456789abcdef0", {"instance_type": "p5.48xlarge", "count": 1}, {"instance_type": "m7i.large"}
    (plain,) = plan_images(spec(groups={"gpu": {**p5, "image": own}, "cpu": {**cpu, "count": 1, "image": own}}))
    assert (plain.field, plain.contents.roles) == ("plain_ami", ("controller", "login"))
    plain, gpu = plan_images(spec(groups={"a": {**p5, "image": own}, "b": p5}))
    assert (gpu.field, gpu.own_image) == ("ami", None)


def test_a_refresh_replaces_images_of_groups_that_its_cluster_has_built() -> None:
    own = "ami-0123456789abcdef0"
    named = spec(groups={"gpu": {"instance_type": "p5.48xlarge", "count": 1, "image": own}})
    built = MachineImage(own, "gpu", "26.05", "ami-base", "2026-11-16")
    assert AwsTarget().image_paths(named, [built]) == ["aws.plain_ami", "aws.ami"]
    assert AwsTarget().image_paths(named, []) == ["aws.plain_ami"]
