"""docs/aws.md lists, for people who build their own image, every package that set-up would otherwise install."""

from __future__ import annotations

import pytest

from bootstrap.steps.registry import build_probe
from cluster.inventory import Role
from tests.harness import REPO
from tests.infra.targets.aws.node.clusters import desired, fixed


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_the_page_lists_every_package_that_a_node_may_install(role: Role) -> None:
    page = (REPO / "docs/aws.md").read_text().partition("## Images of your own")[2].partition("\n## ")[0]
    node = fixed(role, role, 1)
    packages = (*build_probe(node, desired()).packages, "chrony")
    assert [name for name in packages if f"`{name.removesuffix('*')}`" not in page] == []
