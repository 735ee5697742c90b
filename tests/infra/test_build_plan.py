"""The build plan: names, sizes and devices of every node, from a short spec."""

from __future__ import annotations

from cluster import names
from cluster.spec import Machine
from infra.targets.registry import load_spec as load
from infra.targets.registry import plan_of as plan
from tests.infra.bad_spec_table import valid_spec


def test_smallest_cluster() -> None:
    build_plan = plan(load(valid_spec()))
    assert [(n.name, n.role, n.group, n.cpus, n.memory_mb) for n in build_plan.nodes] == [
        ("controller", "controller", None, 2, 2048),
        ("login", "login", None, 2, 1024),
        ("gpu-1", "compute", "gpu", 2, 2048),
        ("gpu-2", "compute", "gpu", 2, 2048),
    ]
    assert [(v.name, v.mount) for v in build_plan.volumes] == [("shared", "/shared")]
    assert (build_plan.cidr, build_plan.egress, build_plan.image) == (None, True, "muster-node:26.05")


def test_the_description_of_the_spec_has_the_default_sizes() -> None:
    nodes = {node.name: f"{node.memory_mb} MiB" for node in plan(load(valid_spec())).nodes}
    expected = f"without it 2 CPUs and {nodes['gpu-1']}, but {nodes['login']} for the login node"
    assert expected in str(Machine.model_fields["size"].description)


def test_without_login_node() -> None:
    build_plan = plan(load({**valid_spec(), "login": {"enabled": False}}))
    assert [n.name for n in build_plan.nodes] == ["controller", "gpu-1", "gpu-2"]


def test_growth_does_not_change_existing_nodes() -> None:
    small, large = plan(load(valid_spec())), plan(load({**valid_spec(), "groups": {"gpu": {"count": 4}}}))
    assert set(small.nodes) < set(large.nodes)


def test_simulated_gpus_have_devices() -> None:
    build_plan = plan(load({**valid_spec(), "groups": {"gpu": {"count": 1, "gpus": {"count": 2, "type": "a100"}}}}))
    gpus = build_plan.nodes[-1].gpus
    assert (gpus.count, gpus.type, gpus.devices) == (2, "a100", ("/dev/fakegpu0", "/dev/fakegpu1"))
    assert build_plan.nodes[0].gpus.count == 0


def test_sizes_port_and_network() -> None:
    spec = {
        **valid_spec(),
        "groups": {"gpu": {"count": 1, "size": {"cpus": 1, "memory_mb": 512}}},
        "login": {"ssh_port": 2222},
        "network": {"cidr": "10.1.0.0/24", "egress": False},
        "tags": {"owner": "me"},
    }
    build_plan = plan(load(spec))
    assert [(n.cpus, n.memory_mb, n.ssh_port) for n in build_plan.nodes] == [
        (2, 2048, None),
        (2, 1024, 2222),
        (1, 512, None),
    ]
    assert (build_plan.cidr, build_plan.egress, build_plan.tags) == ("10.1.0.0/24", False, {"owner": "me"})


def test_autoscaled_group_starts_with_its_minimum() -> None:
    build_plan = plan(load({**valid_spec(), "groups": {"gpu": {"min": 1, "max": 8}}}))
    assert [n.name for n in build_plan.nodes if n.group] == ["gpu-1"]


def test_shared_is_the_first_volume() -> None:
    storage = {"aaa": {"mount": "/aaa"}, "shared": {}, "zzz": {"mount": "/zzz"}}
    assert [v.name for v in plan(load({**valid_spec(), "storage": storage})).volumes] == ["shared", "aaa", "zzz"]


def test_names() -> None:
    assert names.container("demo", "gpu-1") == "muster-demo-gpu-1"
    assert names.network("demo") == "muster-demo"
    assert names.volume("demo", "shared") == "muster-demo-shared"
    assert names.labels("demo", "local", "2026-01-02T03:04:05Z") | names.node_labels("compute", "gpu-1", "gpu") == {
        "muster.cluster": "demo",
        "muster.stack": "local",
        "muster.created": "2026-01-02T03:04:05Z",
        "muster.role": "compute",
        "muster.node": "gpu-1",
        "muster.group": "gpu",
    }
    assert "muster.group" not in names.node_labels("login", "login", None)
