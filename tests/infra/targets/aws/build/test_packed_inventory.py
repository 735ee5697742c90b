"""The inventory that the program packs into the bundle of the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import pytest

from bootstrap import bundle
from bootstrap.steps.ssh import render_known_hosts
from cluster.inventory import Inventory
from cluster.names import members
from infra.targets.aws.build import bundle as build_bundle
from infra.targets.aws.build.bundle import PackedBundle
from infra.targets.registry import read_spec as read
from tests.infra.targets.aws.build.capture import ROOT, SECRETS, STACKS, capture


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
    launched = [name for node_set in inventory.sets for name in members(node_set.group, node_set.count)]
    assert keys == fixed | {name: f"ssh-ed25519 PUBLIC-{name}" for name in launched}
    assert {node_set.group for node_set in inventory.sets} == set(spec.groups)


def test_another_slurm_key_is_another_bundle_which_does_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read(ROOT / "stacks" / "Pulumi.aws-g6-pair.yaml")
    packed: list[Mapping[str, str]] = []

    def pack(_stack: str, _architecture: str, files: Mapping[str, str]) -> PackedBundle:
        packed.append(files)
        return PackedBundle("digest", "sha256", "bundle.tar")

    monkeypatch.setattr(build_bundle, "pack_bundle", pack)
    keys = ("U0xVUk0tS0VZ", "T1RIRVItS0VZ")
    for key in keys:
        monkeypatch.setitem(SECRETS, "slurm_key", key)
        capture(spec, "aws-g6-pair")
    first, second = packed
    assert {name for name in first if first[name] != second[name]} == {bundle.SLURM_KEY_DIGEST}
    content = "".join([*first.values(), *second.values()])
    assert [key for key in (*keys, "SLURM-KEY", "OTHER-KEY") if key in content] == []
