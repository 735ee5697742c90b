"""The resources of a cluster as Azure's API takes them. Pure functions.

Bodies have no location, tags or user data: what creates them adds these. Tests compare every body with the types that
Azure publishes for the API versions of kinds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster import names
from cluster.spec import ClusterSpec, Storage
from infra.plan import PlannedNode
from infra.targets.azure.plan import disk_size_gb, divide_range, resource_id
from infra.targets.azure.spec import ADMIN, MARKETPLACE, Azure, require_section
from infra.targets.azure.validate import GB_PER_TIB

Body = dict[str, Any]
SSH_PORT = 22
NODES, FILESYSTEMS = "nodes", "filesystems"
_NETWORK = "Microsoft.Network"


def security_group_body(section: Azure, cidr: str) -> Body:
    """Return the rules: from outside only SSH from some addresses gets in; nodes and filesystems reach each other.

    Azure's own rules, which come after these, let everything pass outwards and refuse all else from outside.
    """
    ssh = {"sourceAddressPrefixes": sorted(section.ssh_from), "destinationPortRange": str(SSH_PORT)}
    inside = {"sourceAddressPrefix": cidr, "destinationPortRange": "*"}
    rules = [_rule("ssh", 100, "Tcp", ssh), _rule("inside", 110, "*", inside)]
    return {"properties": {"securityRules": rules}}


def public_address_body() -> Body:
    """Return a static public address."""
    properties = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}
    return {"sku": {"name": "Standard"}, "properties": properties}


def nat_gateway_body(address: str) -> Body:
    """Return the gateway by which nodes reach the internet."""
    return {"sku": {"name": "Standard"}, "properties": {"publicIpAddresses": [{"id": address}]}}


def network_body(spec: ClusterSpec, cidr: str) -> Body:
    """Return the network with its subnets: of the nodes, and of filesystems if there are any."""
    name = names.network(spec.name)
    nodes, filesystems = divide_range(cidr)
    guard = {"networkSecurityGroup": {"id": resource_id(spec, f"{_NETWORK}/networkSecurityGroups", name)}}
    gateway = {"natGateway": {"id": resource_id(spec, f"{_NETWORK}/natGateways", name)}}
    subnets: list[Body] = [_subnet(NODES, nodes, {**guard, **gateway})]
    if any(storage.kind == "volume" for storage in spec.storage.values()):
        # Filesystems reach services of Azure's own, for which they need a way out, too.
        subnets.append(_subnet(FILESYSTEMS, filesystems, {**guard, **gateway}))
    return {"properties": {"addressSpace": {"addressPrefixes": [cidr]}, "subnets": subnets}}


def filesystem_body(spec: ClusterSpec, storage: Storage) -> Body:
    """Return an Azure Managed Lustre filesystem."""
    section = require_section(spec)
    properties = {
        "storageCapacityTiB": (storage.size_gb or 0) / GB_PER_TIB,
        "filesystemSubnet": subnet_id(spec, FILESYSTEMS),
        "maintenanceWindow": {"dayOfWeek": "Sunday", "timeOfDayUTC": "03:00"},
    }
    return {"sku": {"name": section.filesystem_sku}, **_zones(section), "properties": properties}


def interface_body(spec: ClusterSpec, public_address: str | None) -> Body:
    """Return the network interface of a machine that is in no scale set."""
    address: Body = {"primary": True, "subnet": {"id": subnet_id(spec, NODES)}}
    if public_address is not None:
        address["publicIPAddress"] = {"id": public_address}
    properties = {"ipConfigurations": [{"name": "primary", "properties": address}], "enableAcceleratedNetworking": True}
    return {"properties": properties}


def machine_body(spec: ClusterSpec, node: PlannedNode, interface: str) -> Body:
    """Return a virtual machine that is in no scale set: the controller, or the login node."""
    section = require_section(spec)
    attached = {"id": interface, "properties": {"primary": True, "deleteOption": "Detach"}}
    disk = {**_disk(spec, node), "name": f"{names.container(spec.name, node.name)}-boot", "deleteOption": "Delete"}
    properties = {
        "hardwareProfile": {"vmSize": node.instance_type},
        "storageProfile": {"imageReference": image_reference(section.image), "osDisk": disk},
        "osProfile": {"computerName": node.name, **_operating_system()},
        "networkProfile": {"networkInterfaces": [attached]},
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    return {**_zones(section), "properties": properties}


def scale_set_body(spec: ClusterSpec, group: str, nodes: Sequence[PlannedNode]) -> Body:
    """Return the scale set of a node group.

    InfiniBand needs orchestration mode Uniform and a single placement group, and one fault domain, because a group with
    several can rarely be allocated. Overprovisioning would start machines that are removed again.
    """
    section, name, first = require_section(spec), names.volume(spec.name, group), nodes[0]
    address: Body = {"primary": True, "subnet": {"id": subnet_id(spec, NODES)}}
    if section.public_addresses:
        public = {"name": "public", "sku": {"name": "Standard"}, "properties": {"publicIPAddressVersion": "IPv4"}}
        address["publicIPAddressConfiguration"] = public
    interface = {
        "primary": True,
        "enableAcceleratedNetworking": True,
        "ipConfigurations": [{"name": "primary", "properties": address}],
    }
    profile = {
        "osProfile": {"computerNamePrefix": group, **_operating_system()},
        "storageProfile": {"imageReference": image_reference(section.image), "osDisk": _disk(spec, first)},
        "networkProfile": {"networkInterfaceConfigurations": [{"name": name, "properties": interface}]},
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    properties = {
        "orchestrationMode": "Uniform",
        "singlePlacementGroup": first.fabric == "infiniband",
        "platformFaultDomainCount": 1,
        "overprovision": False,
        "upgradePolicy": {"mode": "Manual"},
        "virtualMachineProfile": profile,
    }
    sku = {"name": first.instance_type, "tier": "Standard", "capacity": len(nodes)}
    return {"sku": sku, **_zones(section), "properties": properties}


def image_reference(image: str) -> Body:
    """Return the reference to an image: of the marketplace by four names, of a gallery by its id."""
    marketplace = MARKETPLACE.match(image)
    return marketplace.groupdict() if marketplace else {"id": image}


def subnet_id(spec: ClusterSpec, subnet: str) -> str:
    """Return the id of a subnet of the cluster's network."""
    return f"{resource_id(spec, f'{_NETWORK}/virtualNetworks', names.network(spec.name))}/subnets/{subnet}"


def with_user_data(body: Body, user_data: str, public_key: str) -> Body:
    """Return the body of a machine or scale set with what differs at each creation: user data (Base64) and key."""
    properties = body["properties"]
    profile = properties.get("virtualMachineProfile", properties)
    key = {"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": public_key}
    linux = {**profile["osProfile"]["linuxConfiguration"], "ssh": {"publicKeys": [key]}}
    completed = {**profile, "osProfile": {**profile["osProfile"], "customData": user_data, "linuxConfiguration": linux}}
    if "virtualMachineProfile" in properties:
        completed = {**properties, "virtualMachineProfile": completed}
    return {**body, "properties": completed}


def _rule(name: str, priority: int, protocol: str, source: Body) -> Body:
    what = {"access": "Allow", "direction": "Inbound", "sourcePortRange": "*", "destinationAddressPrefix": "*"}
    return {"name": name, "properties": {"priority": priority, "protocol": protocol, **what, **source}}


def _subnet(name: str, cidr: str, links: Body) -> Body:
    return {"name": name, "properties": {"addressPrefix": cidr, "defaultOutboundAccess": False, **links}}


def _disk(spec: ClusterSpec, node: PlannedNode) -> Body:
    return {
        "createOption": "FromImage",
        "caching": "ReadWrite",
        "diskSizeGB": disk_size_gb(spec, node.role, node.group),
        "managedDisk": {"storageAccountType": require_section(spec).disk_sku},
    }


def _operating_system() -> Body:
    return {"adminUsername": ADMIN, "linuxConfiguration": {"disablePasswordAuthentication": True}}


def _zones(section: Azure) -> Body:
    return {"zones": [section.zone]} if section.zone else {}
