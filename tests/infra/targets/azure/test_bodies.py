"""Requests as Azure publishes their types, and what they say: placement, security rules, subnets, disks."""

from __future__ import annotations

import re
from types import ModuleType

import azure.mgmt.compute.operations
import azure.mgmt.network.operations
import azure.mgmt.storagecache.operations
import pytest
from pydantic import ValidationError

from infra.targets.azure import kinds
from infra.targets.azure.bodies import machine_body, network_body, scale_set_body, security_group_body
from infra.targets.azure.build.machine_key import MachineKeyProvider
from infra.targets.azure.plan import list_served, plan_azure
from infra.targets.azure.spec import require_section
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.published_types import check_body
from tests.infra.targets.azure.resources import (
    LABELS,
    PROVIDER,
    SCALE_SETS,
    create_all,
    describe_key,
    describe_scale_set,
)
from tests.infra.targets.azure.specs import IMAGE, make_spec, spec_data


def test_every_request_is_of_a_published_type(arm: FakeArm) -> None:
    resources = create_all()
    for name in ("network", "filesystem", "network interface", "machine", "public address"):
        olds = resources[name]
        PROVIDER.update(olds["arm_id"], olds, olds | {"labels": LABELS | {"team": "a"}})
    scale_set = resources["scale set"]
    for machine in (scale_set["machines"]["gpu-1"], resources["machine"]):
        MachineKeyProvider().create(describe_key("a", machine))
    next(iter(arm.instances.values()))[scale_set["machines"]["gpu-1"]["number"]]["properties"]["instanceView"] = {
        "statuses": [{"code": "PowerState/deallocated"}]
    }
    SCALE_SETS.update(scale_set["arm_id"], scale_set, describe_scale_set(make_spec(), ["gpu-1"]))
    sent = {(method, what) for method, what, _body in arm.bodies}
    # Everything that changes something was sent, so nothing goes unchecked.
    assert len(sent) == 18
    for method, what, body in arm.bodies:
        check_body(method, what, body)


def test_fields_and_values_that_azure_does_not_have_are_found() -> None:
    spec = make_spec()
    body = {**scale_set_body(spec, "gpu", plan_azure(spec).nodes[1:]), "location": "eastus"}
    body["properties"]["orchestrationMode"] = "uniform"
    body["properties"]["singlePlacementGroups"] = True
    with pytest.raises(ValidationError) as invalid:
        check_body("PUT", "microsoft.compute/virtualmachinescalesets", body)
    assert {".".join(map(str, entry["loc"])) for entry in invalid.value.errors()} == {
        "properties.orchestrationMode",
        "properties.singlePlacementGroups",
    }


VERSIONS = {
    (azure.mgmt.compute.operations, "build_virtual_machine_scale_sets_create_or_update_request"): kinds.COMPUTE_API,
    (azure.mgmt.compute.operations, "build_gallery_image_versions_get_request"): kinds.GALLERIES_API,
    (azure.mgmt.compute.operations, "build_disks_delete_request"): kinds.DISKS_API,
    (azure.mgmt.compute.operations, "build_resource_skus_list_request"): kinds.SKUS_API,
    (azure.mgmt.network.operations, "build_virtual_networks_create_or_update_request"): kinds.NETWORK_API,
    (
        azure.mgmt.network.operations,
        "build_network_interfaces_list_virtual_machine_scale_set_network_interfaces_request",
    ): kinds.SCALE_SET_NETWORK_API,
    (azure.mgmt.storagecache.operations, "build_aml_filesystems_create_or_update_request"): kinds.STORAGE_API,
}


@pytest.mark.parametrize(("where", "version"), VERSIONS.items(), ids=[name for _module, name in VERSIONS])
def test_api_versions_are_those_of_the_types(where: tuple[ModuleType, str], version: str) -> None:
    build = getattr(where[0]._operations, where[1])
    names = [n for n in build.__code__.co_varnames if n in _ARGUMENTS]
    request = build(**{name: _ARGUMENTS[name] for name in names})
    assert re.search(r"api-version=([0-9-]+)", request.url)[1] == version


_ARGUMENTS = {
    "resource_group_name": "group",
    "vm_scale_set_name": "name",
    "virtual_machine_scale_set_name": "name",
    "subscription_id": "11111111-2222-3333-4444-555555555555",
    "gallery_name": "gallery",
    "gallery_image_name": "image",
    "gallery_image_version_name": "1.0.0",
    "disk_name": "disk",
    "virtual_network_name": "name",
    "aml_filesystem_name": "filesystem",
}


def test_infiniband_needs_one_placement_group() -> None:
    spec = make_spec()
    nodes = plan_azure(spec).nodes[1:]
    body = scale_set_body(spec, "gpu", nodes)
    assert body["sku"] == {"name": "Standard_ND96isr_H100_v5", "tier": "Standard", "capacity": 2}
    properties = body["properties"]
    assert (properties["orchestrationMode"], properties["singlePlacementGroup"]) == ("Uniform", True)
    assert (properties["platformFaultDomainCount"], properties["overprovision"]) == (1, False)
    storage = properties["virtualMachineProfile"]["storageProfile"]
    assert storage["imageReference"] == dict(
        zip(("publisher", "offer", "sku", "version"), IMAGE.split(":"), strict=True)
    )
    data = spec_data()
    tcp = make_spec(groups={"gpu": {**data["groups"]["gpu"], "fabric": "tcp"}})
    assert scale_set_body(tcp, "gpu", plan_azure(tcp).nodes[1:])["properties"]["singlePlacementGroup"] is False


def test_machines_are_in_the_zone_and_may_have_no_public_address() -> None:
    data = spec_data()
    spec = make_spec(azure={**data["azure"], "zone": "2", "public_addresses": False})
    body = scale_set_body(spec, "gpu", plan_azure(spec).nodes[1:])
    assert body["zones"] == ["2"]
    network = body["properties"]["virtualMachineProfile"]["networkProfile"]["networkInterfaceConfigurations"][0]
    assert "publicIPAddressConfiguration" not in network["properties"]["ipConfigurations"][0]["properties"]


def test_only_ssh_gets_in_from_outside() -> None:
    rules = security_group_body(require_section(make_spec()), "10.88.0.0/20")["properties"]["securityRules"]
    ssh, inside = (rule["properties"] for rule in rules)
    assert {(rule["access"], rule["direction"]) for rule in (ssh, inside)} == {("Allow", "Inbound")}
    assert (ssh["sourceAddressPrefixes"], ssh["destinationPortRange"]) == (["203.0.113.7/32"], "22")
    assert (inside["sourceAddressPrefix"], inside["destinationPortRange"]) == ("10.88.0.0/20", "*")


def test_every_subnet_has_the_rules_and_the_gateway() -> None:
    subnets = network_body(make_spec(), "10.88.0.0/20")["properties"]["subnets"]
    assert {subnet["name"]: subnet["properties"]["addressPrefix"] for subnet in subnets} == {
        "nodes": "10.88.0.0/21",
        "filesystems": "10.88.8.0/22",
    }
    for subnet in subnets:
        assert subnet["properties"]["networkSecurityGroup"]["id"].endswith("/networkSecurityGroups/muster-demo")
        assert subnet["properties"]["natGateway"]["id"].endswith("/natGateways/muster-demo")
        assert subnet["properties"]["defaultOutboundAccess"] is False


def test_the_controllers_disk_has_room_for_what_it_serves() -> None:
    spec = make_spec(storage={"shared": {"kind": "nfs", "size_gb": 1000, "keep": False}})
    body = machine_body(spec, plan_azure(spec).nodes[0], "/interface")
    assert body["properties"]["storageProfile"]["osDisk"]["diskSizeGB"] == 1128
    assert [(entry.mount, entry.node, entry.folder) for entry in list_served(spec)] == [
        ("/shared", "controller", "/srv/muster/shared")
    ]
    assert [subnet["name"] for subnet in network_body(spec, "10.88.0.0/20")["properties"]["subnets"]] == ["nodes"]
