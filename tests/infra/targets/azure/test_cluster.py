"""The Pulumi program with Pulumi's mocks: what host keys, first boots and the inventory know of each machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks

from cluster.inventory import Inventory
from infra.guard import ChangeGuard
from infra.resources.secrets import ClusterSecrets
from infra.targets.azure.build.cluster import AzureCluster
from infra.targets.azure.plan import plan_azure
from infra.targets.target import Context
from tests.infra.targets.azure.specs import make_spec

Outputs = dict[str, Any]


class Machines(Mocks):
    """Machines that have their ids and addresses; records the inputs of every resource."""

    def __init__(self) -> None:
        self.inputs: dict[str, Outputs] = {}

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, Outputs]:
        self.inputs[args.name] = args.inputs
        outputs = {
            "address": "10.88.0.4",
            "machine_id": f"vm-{args.name}",
            "public": "ssh-ed25519 AAAA",
            "ssh_public_key": "ssh-ed25519 BBBB cluster",
            "ssh_private_key": "private",
            "cpus": 8,
            "memory_mb": 32768,
        }
        outputs["machines"] = {
            node: {"arm_id": f"arm-{node}", "machine_id": f"vm-{node}", "address": "10.88.0.5", "public_address": "a"}
            for node in args.inputs.get("nodes", ())
        }
        return args.inputs.get("arm_id") or args.name, {**args.inputs, **outputs}

    def call(self, args: MockCallArgs) -> tuple[Outputs, list[tuple[str, str]]]:
        raise NotImplementedError(args.token)


def test_every_machine_is_known_by_an_id_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    machines, spec = Machines(), make_spec()
    pulumi.runtime.set_mocks(machines, project="muster", stack="dev", preview=False)
    inventories: list[str] = []

    @pulumi.runtime.test
    def program() -> pulumi.Output[None]:
        guard = ChangeGuard("guard", spec=spec.model_dump_json(), stack="dev")
        secrets = ClusterSecrets("secrets", cluster=spec.name, opts=pulumi.ResourceOptions())
        cluster = AzureCluster(plan_azure(spec), Context("dev", guard, spec, secrets))
        return cluster.inventory.apply(inventories.append)

    program()
    inventory = Inventory.model_validate_json(inventories[0])
    ids = {node.name: node.machine_id for node in inventory.nodes}
    assert ids == {"controller": "vm-controller", "gpu-1": "vm-gpu-1", "gpu-2": "vm-gpu-2"}
    for node, id_ in ids.items():
        assert machines.inputs[f"host-key-{node}"]["machine"] == id_
        assert machines.inputs[f"boot-{node}"]["machine"] == id_
    assert machines.inputs["host-key-gpu-1"]["arm_id"] == "arm-gpu-1"
