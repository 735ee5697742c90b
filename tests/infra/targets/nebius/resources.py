"""Resources of each kind, created through their Pulumi provider in the project that stands in for a real one."""

from __future__ import annotations

from typing import Any

from infra.targets.nebius.build.resource import CloudResourceProvider
from infra.targets.nebius.plan import (
    filesystem_spec,
    gpu_cluster_spec,
    instance_spec,
    plan_nebius,
    rule_specs,
    subnet_spec,
)
from infra.targets.nebius.spec import require_section
from tests.infra.targets.nebius.specs import make_spec

PROJECT = "project-e00test"
LABELS = {"muster.cluster": "demo", "muster.stack": "dev", "muster.home": "abc"}
PROVIDER = CloudResourceProvider()
Props = dict[str, Any]


def describe(kind: str, name: str, spec: Props, **changes: Any) -> Props:
    """Return the inputs of a resource."""
    props = {
        "kind": kind,
        "project": PROJECT,
        "name": name,
        "labels": LABELS,
        "spec": spec,
        "where": "nebius",
        "node": "",
        "user_data": "",
    }
    return {**props, "parent": "", **changes}


def create(kind: str, name: str, spec: Props, **changes: Any) -> tuple[str, Props]:
    """Create a resource; return its id and outputs."""
    created = PROVIDER.create(describe(kind, name, spec, **changes))
    assert created.outs is not None
    return created.id, created.outs


def create_all() -> dict[str, tuple[str, Props]]:
    """Create one resource of each kind."""
    spec = make_spec()
    section, node = require_section(spec), plan_nebius(spec).nodes[-1]
    resources = {"network": create("network", "demo", {})}
    network = resources["network"][0]
    resources["subnet"] = create("subnet", "demo", subnet_spec(network, "10.88.0.0/20"))
    resources["security group"] = create("security group", "demo", {"networkId": network})
    group = resources["security group"][0]
    for name, rule in rule_specs(group, section.ssh_from).items():
        resources["security rule"] = create("security rule", name, rule, parent=group)
    resources["filesystem"] = create("filesystem", "demo-shared", filesystem_spec(section, spec.storage["shared"]))
    resources["GPU cluster"] = create("GPU cluster", "demo-gpu", gpu_cluster_spec(section.groups["gpu"]))
    parts = {
        "subnet": resources["subnet"][0],
        "security_group": group,
        "gpu_cluster": resources["GPU cluster"][0],
    }
    described = instance_spec(spec, node, parts, {"shared": resources["filesystem"][0]})
    resources["instance"] = create("instance", "demo-gpu-2", described, user_data="#cloud-config\n")
    return resources
