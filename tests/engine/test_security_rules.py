"""Security rules on Nebius with the real engine: what is wrong is replaced, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.targets.nebius.client import LOOPBACK
from tests.engine.machines import Machines
from tests.infra.targets.nebius.fake_cloud import FakeCloud, serve_cloud

pytestmark = pytest.mark.nightly

PROGRAM = Path(__file__).parent / "security_rules_program"


def list_rules(cloud: FakeCloud) -> dict[str, tuple[str, list[str] | None]]:
    """Return the id of each rule and the addresses that it lets in, by the rule's name."""
    return {
        rule["metadata"]["name"]: (rule["metadata"]["id"], rule["spec"].get("ingress", {}).get("sourceCidrs"))
        for rule in cloud.of_kind("SecurityRule")
    }


def read_host_key(stack: Machines) -> str:
    """Return the key of the resource that depends on the rules."""
    resources = json.loads(stack.state_file.read_text())["checkpoint"]["latest"]["resources"]
    (key,) = (entry["outputs"]["public"] for entry in resources if entry["type"].endswith("NebiusHostKey"))
    return str(key)


def test_rules_are_replaced_and_what_depends_on_them_is_not(tmp_path: Path) -> None:
    with serve_cloud(FakeCloud()) as cloud:
        env = {LOOPBACK: str(cloud.port)}
        stack = Machines("rules", tmp_path, {"ssh_from": ["203.0.113.7/32"]}, env, PROGRAM)
        stack.up()
        before, key = list_rules(cloud), read_host_key(stack)
        # Somebody lets the world reach all ports, and the spec another address connect to SSH.
        rule = cloud.resources[before["nodes"][0]]
        rule["spec"]["ingress"] = {"sourceCidrs": ["0.0.0.0/0"]}
        stack.spec = {"ssh_from": ["203.0.113.8/32"]}
        stack.up()
        after = list_rules(cloud)
        assert {name: addresses for name, (_, addresses) in after.items()} == {
            "ssh": ["203.0.113.8/32"],
            "nodes": None,
            "out": None,
        }
        assert {name for name in after if after[name] != before[name]} == {"ssh", "nodes"}
        assert read_host_key(stack) == key
