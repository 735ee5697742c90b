"""Updates of a running cluster on AWS: no change loses files, and the queue survives a new controller."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.validate.update import affected, violations
from tests.infra.targets.aws.specs import group, spec
from tests.infra.test_update_policy import idle, running

IMAGES = ("ami-0123456789abcdef0", "ami-0123456789abcdef1")
TWO_KINDS = {**group(), "cpu": {"instance_type": "m7i.xlarge", "count": 1}}
OWN = "ami-0123456789abcdef0"


def lustre(**fields: Any) -> dict[str, Any]:
    return {"storage": {"shared": {"kind": "fsx-lustre", "keep": False, **fields}}}


@pytest.mark.parametrize(
    ("before", "after", "old_gb", "new_gb"),
    [
        ({"size_gb": 4800}, {"size_gb": 2400}, 4800, 2400),
        ({"size_gb": 4800}, {}, 4800, 1200),
        # The minimum size is smaller at a higher throughput.
        ({"efa": True}, {"efa": True, "throughput": 1000}, 19200, 4800),
    ],
)
def test_a_filesystem_never_shrinks_even_with_force(
    before: dict[str, Any], after: dict[str, Any], old_gb: int, new_gb: int
) -> None:
    (issue,) = violations(spec(**lustre(**before)), spec(**lustre(**after)), idle, force=True)
    assert (issue.code, issue.where) == ("storage_shrunk", "storage.shared.size_gb")
    assert issue.message == f"{new_gb} is less than the {old_gb} GB that the filesystem has; it can only grow"
    assert issue.fix == f"write `size_gb: {old_gb}` or more, or `make teardown` and then `make up`"


@pytest.mark.parametrize("after", [{"size_gb": 2400}, {"size_gb": 1200}, {"throughput": 500}])
def test_a_filesystem_may_grow_while_jobs_run(after: dict[str, Any]) -> None:
    assert violations(spec(**lustre()), spec(**lustre(**after)), running(gpu_1=["7"])) == []


def test_another_controller_type_affects_no_jobs() -> None:
    new = spec(controller={"instance_type": "m7i.2xlarge"}, login={"instance_type": "m7i.xlarge"})
    assert affected(spec(), new) == ()
    assert violations(spec(), new, running(gpu_1=["7"])) == []


@pytest.mark.parametrize(("field", "nodes"), [("ami", ("gpu-1", "gpu-2")), ("plain_ami", ("cpu-1",))])
def test_another_image_affects_the_nodes_that_use_it(field: str, nodes: tuple[str, ...]) -> None:
    old = spec(groups=TWO_KINDS)
    new = spec(groups=TWO_KINDS, aws={"region": "us-east-1", field: OWN})
    assert affected(old, new) == nodes
    assert [issue.code for issue in violations(old, new, running(gpu_1=["7"]))] == ["node_busy"] * (field == "ami")


def with_images(section: str | None, first: str | None, second: str | None) -> ClusterSpec:
    groups = {"first": first, "second": second}
    fields: dict[str, Any] = {"instance_type": "p5.48xlarge", "count": 1}
    own = {name: fields | ({"image": image} if image else {}) for name, image in groups.items()}
    return spec(groups=own, aws={"region": "us-east-1"} | ({"ami": section} if section else {}))


OLD, NEW = IMAGES


@pytest.mark.parametrize(
    ("before", "after", "nodes"),
    [
        ((OLD, None, None), (OLD, NEW, None), ("first-1",)),
        ((OLD, NEW, None), (NEW, None, None), ("second-1",)),
        ((None, NEW, None), (NEW, None, None), ("second-1",)),
        ((NEW, None, None), (None, NEW, NEW), ()),
        ((OLD, None, None), (NEW, None, OLD), ("first-1",)),
    ],
)
def test_only_groups_whose_nodes_start_from_another_image_are_replaced(
    before: tuple[str | None, ...], after: tuple[str | None, ...], nodes: tuple[str, ...]
) -> None:
    assert affected(with_images(*before), with_images(*after)) == nodes
