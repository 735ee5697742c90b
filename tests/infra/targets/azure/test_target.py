"""What the target says of a spec: plan, user data, cost, deployment; pure but for the Pulumi state file."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.engine.stop import Stop
from infra.targets.azure import client
from infra.targets.azure.cost import cost_azure
from infra.targets.azure.plan import plan_azure
from infra.targets.azure.quote import NOT_LISTED, choose_price
from infra.targets.azure.target import AzureTarget
from infra.targets.azure.user_data import render_user_data
from infra.targets.rented.cost import UNKNOWN
from infra.targets.target import Deployment
from muster.commands import screen
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.specs import SUBSCRIPTION, make_spec, spec_data
from tests.infra.targets.rented.stacks import make_stack

TARGET = AzureTarget()


def test_nodes_have_the_hardware_of_their_sizes() -> None:
    nodes = {node.name: node for node in plan_azure(make_spec(login={"enabled": True})).nodes}
    assert list(nodes) == ["controller", "login", "gpu-1", "gpu-2"]
    assert (nodes["gpu-1"].cpus, nodes["gpu-1"].memory_mb, nodes["gpu-1"].gpus.count) == (96, 1900 * 1024, 8)
    assert (nodes["login"].cpus, nodes["login"].fabric) == (4, "tcp")


def test_user_data_has_the_clusters_key_and_mounts_filesystems() -> None:
    text = b64decode(render_user_data("ssh-ed25519 BBBB cluster", {"/shared": "10.88.8.4"})).decode()
    assert text.startswith("#cloud-config\n")
    config = yaml.safe_load(text)
    assert config["ssh_authorized_keys"] == ["ssh-ed25519 BBBB cluster"]
    assert (config["disable_root"], config["ssh_pwauth"], config["preserve_hostname"]) == (False, False, True)
    assert "ssh_keys" not in config
    assert [command[2].splitlines()[:2] for command in config["runcmd"]] == [
        ["mkdir -p /shared", "source=10.88.8.4@tcp:/lustrefs"]
    ]


def test_lines_of_the_cost() -> None:
    cost = cost_azure(make_spec(login={"enabled": True}))
    assert [(line.part, line.what, line.count, line.usd_per_hour, line.note) for line in cost.lines] == [
        ("azure.controller", "Standard_D8s_v5", 1, 0.384, ""),
        ("azure.login", "Standard_D4s_v5", 1, 0.192, ""),
        ("azure.groups.gpu", "Standard_ND96isr_H100_v5", 2, 196.64, ""),
        ("azure.disk_sku", "boot disk Premium_LRS, 128 GiB", 2, 0.0, UNKNOWN),
        ("azure.disk_sku", "boot disk Premium_LRS, 200 GiB", 2, 0.0, UNKNOWN),
        ("storage.shared", "filesystem AMLFS-Durable-Premium-250, 8192 GiB", 1, 0.0, UNKNOWN),
        ("azure.region", "NAT gateway", 1, 0.0, UNKNOWN),
        ("azure.public_addresses", "public IPv4 address", 5, 0.0, UNKNOWN),
    ]


def test_a_price_that_is_not_known_is_said() -> None:
    section = spec_data()["azure"] | {"region": "swedencentral"}
    lines = cost_azure(make_spec(azure=section)).lines
    assert [(line.usd_per_hour, line.note, line.open) for line in lines[:2]] == [(0.0, UNKNOWN, True)] * 2


def price(usd: float, **changes: Any) -> dict[str, Any]:
    entry = {"retailPrice": usd, "unitOfMeasure": "1 Hour", "productName": "Virtual Machines Dsv5", "skuName": "D8s v5"}
    return entry | changes


LISTED = [
    price(0.4),
    price(0.7, productName="Virtual Machines Dsv5 Series Windows"),
    price(0.05, skuName="D8s v5 Spot"),
    price(0.06, skuName="D8s v5 Low Priority"),
    price(900.0, unitOfMeasure="1 Month"),
]


def test_prices_of_today(arm: FakeArm) -> None:
    urls = []

    def answer(url: str, _body: Any) -> dict[str, Any]:
        urls.append(url)
        return {"Items": LISTED if "D8s" in url else []}

    arm.answers["/api/retail/prices"] = answer
    quoted = TARGET.quote(make_spec(), screen)
    assert quoted.today
    assert "by Azure's retail price list" in quoted.source
    # A size that the list does not have keeps the price of the table.
    assert [(line.usd_per_hour, line.note) for line in quoted.cost.lines[:3]] == [
        *((0.4, ""), (196.64, "")),
        (0.0, NOT_LISTED),
    ]
    assert "armRegionName+eq+%27eastus%27" in urls[0]
    assert choose_price(LISTED[1:]) is None


def test_the_table_is_used_without_a_login_and_without_an_answer(arm: FakeArm, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = TARGET.quote(make_spec(), screen)
    assert (quoted.today, quoted.cost) == (False, cost_azure(make_spec()))
    assert "today's could not be read (azure.region: the price list cannot be read" in quoted.source
    monkeypatch.setattr(client, "has_credentials", lambda: False)
    expected = "instance prices of 2025-09-11; today's are asked for only with a login to Azure"
    assert TARGET.quote(make_spec(), screen).source == expected


def test_the_subscription_is_that_of_the_state_then_of_the_stack_file(tmp_path: Path) -> None:
    spec, empty = make_spec(), make_stack(tmp_path / "empty", [])
    assert TARGET.deployment(empty, "demo", spec) == Deployment("demo", "dev", account=SUBSCRIPTION)
    assert TARGET.deployment_in_state(empty, spec) is None
    inputs = {"labels": {"muster.cluster": "old"}, "subscription": "other"}
    resource = {"type": "pulumi-python:dynamic/muster:AzureResource", "inputs": inputs}
    existing = make_stack(tmp_path / "existing", [{"type": "pulumi:pulumi:Stack"}, resource])
    assert TARGET.deployment_in_state(existing, None) == Deployment("old", "dev", account="other")
    with pytest.raises(Stop, match="neither the state nor the stack file of dev names the subscription of cluster"):
        TARGET.deployment(empty, "demo", None)


def test_a_field_of_a_group_concerns_its_nodes() -> None:
    spec = make_spec()
    assert TARGET.nodes_concerned("azure.groups.gpu.size", spec) == ["gpu-1", "gpu-2"]
    assert TARGET.nodes_concerned("azure.controller.size", spec) == ["controller"]
    assert TARGET.nodes_concerned("azure.image", spec) == ["controller", "gpu-1", "gpu-2"]
    assert TARGET.region(spec) == "eastus"
