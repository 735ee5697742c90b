"""The inventory that the program packs into the bundle of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import pytest

from bootstrap import bundle
from bootstrap.steps.ssh import render_known_hosts
from cluster.inventory import Inventory
from infra.targets.aws.build import bundle as build_bundle
from infra.targets.aws.build.bundle import PackedBundle
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT, STACKS, capture


@pytest.mark.parametrize("stack", STACKS)
def test_every_node_knows_all_host_keys(stack: str) -> None:
    spec = read(ROOT / "stacks" / f"Pulumi.{stack}.yaml")
    packed: list[Inventory] = []

    def pack(_stack: str, _architecture: str, files: Mapping[str, str]) -> PackedBundle:
        packed.append(Inventory.model_validate_json(files[bundle.INVENTORY]))
        return PackedBundle("digest", "sha256", "bundle.tar")

    with patch.object(build_bundle, "pack_bundle", pack):
        capture(spec, stack)
    (inventory,) = packed
    keys = dict(line.split(" ", 1) for line in render_known_hosts(inventory).splitlines())
    fixed = {f"{node.name},{node.address}": f"ssh-ed25519 PUBLIC-{node.role}" for node in inventory.nodes}
    assert keys == fixed | {f"{group}-*": "ssh-ed25519 PUBLIC-compute" for group in spec.groups}
