"""Resources of each kind, created through their Pulumi providers in the subscription that stands in for a real one."""

from __future__ import annotations

from typing import Any

from cluster.spec import ClusterSpec
from infra.targets.azure import bodies
from infra.targets.azure.build.resource import CloudResourceProvider
from infra.targets.azure.build.scale_set import ScaleSetProvider
from infra.targets.azure.kinds import GROUP, KINDS
from infra.targets.azure.plan import group_id, plan_azure, resource_id
from infra.targets.azure.spec import require_section
from infra.targets.azure.user_data import render_user_data
from tests.infra.targets.azure.specs import SUBSCRIPTION, make_spec

LABELS = {"muster.cluster": "demo", "muster.stack": "dev", "muster.home": "abc"}
PROVIDER, SCALE_SETS = CloudResourceProvider(), ScaleSetProvider()
Props = dict[str, Any]


def describe(kind: str, name: str, body: Props, **changes: Any) -> Props:
    """Return the inputs of a resource."""
    spec = make_spec()
    props = {
        "kind": kind,
        "arm_id": group_id(spec) if kind == GROUP.name else resource_id(spec, KINDS[kind].type, name),
        "subscription": SUBSCRIPTION,
        "region": "eastus",
        "labels": LABELS,
        "body": body,
        "where": "azure",
        "node": "",
        "user_data": "",
        "ssh_public_key": "",
    }
    return {**props, **changes}


def create(kind: str, name: str, body: Props, **changes: Any) -> Props:
    """Create a resource and return its outputs."""
    created = PROVIDER.create(describe(kind, name, body, **changes))
    assert created.outs is not None
    return created.outs


def describe_scale_set(spec: ClusterSpec, nodes: list[str], **changes: Any) -> Props:
    """Return the inputs of the scale set of group `gpu` with some nodes."""
    planned = [node for node in plan_azure(spec).nodes if node.group == "gpu"]
    body = bodies.scale_set_body(spec, "gpu", (planned * len(nodes))[: len(nodes)])
    return describe("scale set", "muster-demo-gpu", body, nodes=nodes, machines=None, drift=None, **_boot(), **changes)


def create_scale_set(nodes: list[str]) -> Props:
    """Create the scale set of group `gpu` and return its outputs."""
    created = SCALE_SETS.create(describe_scale_set(make_spec(), nodes))
    assert created.outs is not None
    return created.outs


def describe_key(node: str, machine: Props) -> Props:
    """Return the inputs of the host key of a machine, from its outputs."""
    return {"node": node, "machine": machine["machine_id"], "arm_id": machine["arm_id"], "where": "azure"}


def create_network() -> dict[str, Props]:
    """Create the resource group and the network with what guards its subnets."""
    spec = make_spec()
    address = resource_id(spec, KINDS["public address"].type, "muster-demo-nat")
    rules = bodies.security_group_body(require_section(spec), "10.88.0.0/20")
    return {
        "resource group": create("resource group", "", {}),
        "security group": create("security group", "muster-demo", rules, where="azure.ssh_from"),
        "public address": create("public address", "muster-demo-nat", bodies.public_address_body()),
        "NAT gateway": create("NAT gateway", "muster-demo", bodies.nat_gateway_body(address)),
        "network": create("network", "muster-demo", bodies.network_body(spec, "10.88.0.0/20")),
    }


def create_all() -> dict[str, Props]:
    """Create one resource of each kind, and return their outputs in the order of creation."""
    spec = make_spec()
    resources = create_network()
    storage = spec.storage["shared"]
    resources["filesystem"] = create("filesystem", "muster-demo-shared", bodies.filesystem_body(spec, storage))
    name = "muster-demo-controller"
    outside = resource_id(spec, KINDS["public address"].type, name)
    resources["controller's address"] = create("public address", name, bodies.public_address_body())
    resources["network interface"] = create("network interface", name, bodies.interface_body(spec, outside))
    interface = resource_id(spec, KINDS["network interface"].type, name)
    body = bodies.machine_body(spec, plan_azure(spec).nodes[0], interface)
    resources["machine"] = create("machine", name, body, **_boot())
    resources["scale set"] = create_scale_set(["gpu-1", "gpu-2"])
    return resources


def _boot() -> Props:
    return {
        "user_data": render_user_data("ssh-ed25519 BBBB cluster", {"/shared": "10.88.8.4"}),
        "ssh_public_key": "ssh-ed25519 BBBB cluster",
    }
