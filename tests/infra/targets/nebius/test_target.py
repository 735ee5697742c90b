"""What the target says of a spec: instances, user data, inventory, deployment; pure but for the Pulumi state file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from bootstrap.desired import Desired, Secrets
from bootstrap.facts.model import Facts
from bootstrap.steps import metadata, registry, users
from infra.engine.stop import Stop
from infra.targets.nebius.plan import instance_spec, plan_nebius, rule_specs
from infra.targets.nebius.target import NebiusTarget
from infra.targets.nebius.user_data import render_user_data
from infra.targets.rented.inventory import build_inventory
from infra.targets.rented.user_data import HEADER
from infra.targets.target import Deployment
from tests.infra.targets.nebius.specs import make_spec, spec_data
from tests.infra.targets.rented.stacks import make_stack

PARTS = {"subnet": "subnet-1", "security_group": "group-1", "gpu_cluster": "gpucluster-1"}
TARGET = NebiusTarget()


def test_an_instance_is_on_the_fabric_and_has_the_filesystem() -> None:
    spec = make_spec()
    described = instance_spec(spec, plan_nebius(spec).nodes[-1], PARTS, {"shared": "filesystem-1"})
    assert described["resources"] == {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
    assert described["gpuCluster"] == {"id": "gpucluster-1"}
    assert described["filesystems"][0]["mountTag"] == "shared"
    assert described["networkInterfaces"][0]["publicIpAddress"] == {"static": True}
    assert described["bootDisk"]["managedDisk"]["spec"]["sizeGibibytes"] == "200"
    assert described["bootDisk"]["managedDisk"]["spec"]["sourceImageId"] == "computeimage-e00debian"
    assert "preemptible" not in described


def test_a_controller_is_on_no_fabric_and_may_have_no_public_address() -> None:
    data = spec_data()
    group = {**data["nebius"]["groups"]["gpu"], "preemptible": True}
    spec = make_spec(nebius={**data["nebius"], "public_addresses": False, "groups": {"gpu": group}})
    controller, node = plan_nebius(spec).nodes[0], plan_nebius(spec).nodes[-1]
    described = instance_spec(spec, controller, {**PARTS, "gpu_cluster": None}, {})
    assert "gpuCluster" not in described
    assert "publicIpAddress" not in described["networkInterfaces"][0]
    assert described["bootDisk"]["managedDisk"]["spec"]["sizeGibibytes"] == "100"
    preempted = instance_spec(spec, node, PARTS, {})
    assert (preempted["preemptible"], preempted["recoveryPolicy"]) == ({"onPreemption": "STOP"}, "FAIL")


def test_only_ssh_gets_in_from_outside() -> None:
    rules = rule_specs("group-1", ["203.0.113.9/32", "203.0.113.7/32"])
    ingress = {name: rule["ingress"] for name, rule in rules.items() if "ingress" in rule}
    assert ingress == {
        "ssh": {"sourceCidrs": ["203.0.113.7/32", "203.0.113.9/32"], "destinationPorts": [22]},
        "nodes": {"sourceSecurityGroupId": "group-1"},
    }


def test_user_data_has_the_host_key_the_clusters_key_and_the_mounts() -> None:
    key = {"private": "-----BEGIN\nsecret\n-----END\n", "public": "ssh-ed25519 AAAA host"}
    text = render_user_data("gpu-1", key, "ssh-ed25519 BBBB cluster", {"shared": "/shared", "data": "/mnt/data"})
    assert text.startswith(HEADER)
    config = yaml.safe_load(text)
    assert config["ssh_keys"] == {"ed25519_private": key["private"], "ed25519_public": key["public"]}
    assert config["ssh_authorized_keys"] == ["ssh-ed25519 BBBB cluster"]
    assert (config["hostname"], config["disable_root"], config["ssh_pwauth"]) == ("gpu-1", False, False)
    mounts = [command[2].splitlines()[0] for command in config["runcmd"][:-1]]
    assert mounts == ["mkdir -p /mnt/data", "mkdir -p /shared"]


@pytest.mark.parametrize(
    ("addresses", "error"),
    [
        ("", ""),
        ("169.254.169.254 STREAM\n169.254.169.254 DGRAM\n", ""),
        ("169.254.169.254 STREAM\nfe80::1 STREAM\n", "metadata.nebius.internal is at fe80::1, which users could reach"),
    ],
    ids=["no such name", "closed by the firewall", "another address, too"],
)
def test_a_metadata_service_that_stays_open_to_users_fails_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: str, error: str
) -> None:
    (tmp_path / "getent").write_text(f"#!/bin/sh\nprintf '{addresses}'\n")
    (tmp_path / "getent").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    text = render_user_data("gpu-1", {"private": "", "public": ""}, "ssh-ed25519 AAAA", {"shared": "/shared"})
    done = subprocess.run(yaml.safe_load(text)["runcmd"][-1], check=False, capture_output=True, text=True)
    assert (done.returncode, error in done.stderr) == (1 if error else 0, True)


def test_users_of_every_node_are_kept_from_the_metadata_service() -> None:
    plan = plan_nebius(make_spec())
    machine = {"address": "10.88.0.4", "host_key": "", "machine_id": "", "cpus": 8, "memory_mb": 1, "path": []}
    inventory = build_inventory(plan, {node.name: machine for node in plan.nodes}, public=False)
    assert inventory.metadata_addresses == ("169.254.169.254",)
    secrets = Secrets(b"", "password", "ssh-ed25519 AAAA")
    desired = Desired(inventory, make_spec(), secrets, Path(__file__).parents[4])
    for node in inventory.nodes:
        actions = {action.title: action for action in metadata.plan_metadata(Facts(), node, desired)}
        script = actions["write /etc/muster/metadata"].data
        assert b'users="root"' in script
        assert b"ip daddr 169.254.169.254 meta skuid != { $allowed } reject" in script
    # Users exist only after the rules.
    assert registry.BASE.index(metadata.STEP) < registry.BASE.index(users.STEP)


def test_the_project_is_that_of_the_state_then_of_the_stack_file(tmp_path: Path) -> None:
    spec, empty = make_spec(), make_stack(tmp_path / "empty", [])
    assert TARGET.deployment(empty, "demo", spec) == Deployment("demo", "dev", account="project-e00test")
    assert TARGET.deployment_in_state(empty, spec) is None
    inputs = {"labels": {"muster.cluster": "old"}, "project": "project-e00old"}
    resource = {"type": "pulumi-python:dynamic/muster:NebiusResource", "inputs": inputs}
    existing = make_stack(tmp_path / "existing", [{"type": "pulumi:pulumi:Stack"}, resource])
    assert TARGET.deployment_in_state(existing, None) == Deployment("old", "dev", account="project-e00old")
    assert TARGET.deployment(existing, "old", spec).account == "project-e00old"
    with pytest.raises(Stop, match="neither the state nor the stack file of dev names the project of cluster demo"):
        TARGET.deployment(empty, "demo", None)


def test_a_field_of_a_group_concerns_its_nodes() -> None:
    spec = make_spec()
    assert TARGET.nodes_concerned("nebius.groups.gpu.preset", spec) == ["gpu-1", "gpu-2"]
    assert TARGET.nodes_concerned("nebius.controller.preset", spec) == ["controller"]
    assert TARGET.nodes_concerned("nebius.image", spec) == ["controller", "gpu-1", "gpu-2"]
    assert TARGET.nodes_concerned("groups.gpu.count", spec) is None
