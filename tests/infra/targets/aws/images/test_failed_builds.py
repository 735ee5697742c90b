"""Builds of images that fail, against moto: nothing paid is left, or what AWS refuses to remove is named."""

from __future__ import annotations

import pytest

from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.aws.images import baked_images, build_images
from infra.targets.aws.images.baked_images import remove_cluster_image
from infra.targets.aws.images.builder_machine import end_earlier
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.leftovers.kind import AccountRegion
from infra.targets.aws.leftovers.search import find_leftovers
from infra.targets.aws.rehearse.moto_server import REGION
from tests.infra.targets.aws.images.test_build_images import (
    HERE,
    SPEC,
    Machine,
    Notes,
    build,
    list_alive,
    list_own,
)
from tests.moto_server import Moto


@pytest.mark.parametrize("program", ["program=bake", "--check"])
def test_a_build_that_fails_leaves_nothing(
    home: Home,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
) -> None:
    monkeypatch.setattr(Machine, "fails_at", program)
    with pytest.raises(ResourceError, match="the plain image failed at slurm: no space left"):
        build(home)
    assert list_alive(aws) == []
    assert list_own(aws) == ([], [])


def test_a_machine_that_aws_does_not_terminate_is_named(home: Home, aws: Moto) -> None:
    notes = Notes()
    aws.fail("TerminateInstances", "UnauthorizedOperation", times=4)
    build_images.build_images(SPEC, home, HERE, notes)
    left = list_alive(aws)
    assert len(left) == 4
    for id_ in left:
        (line,) = [line for line in notes.lines if id_ in line]
        assert f"warning: AWS refused to terminate {id_}, which built the " in line
        assert "UnauthorizedOperation" in line
    aws.fail("TerminateInstances", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match=f"AWS refused TerminateInstances in {REGION}: UnauthorizedOperation"):
        build(home)
    assert end_earlier(AwsApi(REGION), "demo")
    assert list_alive(aws) == []


def test_an_image_that_aws_does_not_remove_is_no_failed_query(home: Home, aws: Moto) -> None:
    image = build(home)["ami"].id
    aws.fail("DeregisterImage", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match=f"images: AWS refused DeregisterImage in {REGION}: UnauthorizedOperation"):
        remove_cluster_image(HERE, image)


def test_an_image_that_cannot_be_marked_as_tested_is_removed(home: Home, aws: Moto) -> None:
    aws.fail("CreateTags", "UnauthorizedOperation")
    with pytest.raises(ResourceError, match="UnauthorizedOperation"):
        build(home)
    assert list_alive(aws) == []
    assert list_own(aws) == ([], [])


def test_an_untested_image_that_cannot_be_removed_is_named(
    home: Home,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Machine, "fails_at", "--check")
    aws.fail("DeregisterImage", "UnauthorizedOperation")
    notes = Notes()
    with pytest.raises(ResourceError, match="the plain image failed at slurm: no space left"):
        build_images.build_images(SPEC, home, HERE, notes, ("plain",))
    ((image,), _) = list_own(aws)
    line = f"the image {image['ImageId']}, which was not tested, still costs money (UnauthorizedOperation)"
    assert any(note.startswith(line) for note in notes.lines)


def test_the_next_build_and_teardown_end_the_machine_of_a_killed_build(
    home: Home,
    aws: Moto,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(Machine, "end", lambda _self: None)
        killed.setattr(Machine, "fails_at", "--check")
        killed.setattr(baked_images, "remove", lambda *_: None)
        with pytest.raises(ResourceError, match="the plain image failed"):
            build(home)
    assert list_alive(aws)
    left = {leftover.kind for leftover in find_leftovers("demo", REGION).resources if not leftover.keep_reason}
    assert {"instance", "machine image"} <= left
    assert end_earlier(AwsApi(REGION), "demo")
    assert list_alive(aws) == []
    assert baked_images.remove_untested(AccountRegion(REGION), "demo")
    assert list_own(aws) == ([], [])
