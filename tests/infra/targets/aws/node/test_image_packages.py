"""docs/aws.md tells whoever makes an image all that set-up would otherwise install."""

from __future__ import annotations

import pytest

from bootstrap.steps.packages import own_packages, packages
from cluster.inventory import Role
from tests.harness import REPO
from tests.infra.targets.aws.node.clusters import fixed


@pytest.mark.parametrize("role", ["controller", "login", "compute"])
def test_the_page_has_every_package_that_a_node_may_install(role: Role) -> None:
    page = (REPO / "docs/aws.md").read_text().partition("## Images of your own")[2].partition("\n## ")[0]
    node = fixed(role, role, 1)
    wanted = (*packages(node), *own_packages(node), "chrony")
    assert [name for name in wanted if f"`{name.removesuffix('*')}`" not in page] == []
