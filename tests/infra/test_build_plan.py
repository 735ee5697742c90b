"""The build plan: names, sizes and devices of every node, from very little."""

from __future__ import annotations

from cluster import names
from infra.targets.registry import load_spec as load
from infra.targets.registry import plan_of as plan
from tests.infra.bad_spec_table import good


def test_smallest_cluster() -> None:
    built = plan(load(good()))
    assert [(n.name, n.role, n.group, n.cpus, n.memory_mb) for n in built.nodes] == [
        ("controller", "controller", None, 2, 2048),
        ("login", "login", None, 2, 1024),
        ("gpu-1", "compute", "gpu", 2, 2048),
        ("gpu-2", "compute", "gpu", 2, 2048),
    ]
    assert [(v.name, v.mount) for v in built.volumes] == [("shared", "/shared")]
    assert (built.cidr, built.egress, built.image) == (None, True, "muster-node:24.11")


def test_without_login_node() -> None:
    built = plan(load({**good(), "login": {"enabled": False}}))
    assert [n.name for n in built.nodes] == ["controller", "gpu-1", "gpu-2"]


def test_growth_keeps_the_plan_of_every_other_node() -> None:
    small, large = plan(load(good())), plan(load({**good(), "groups": {"gpu": {"count": 4}}}))
    assert set(small.nodes) < set(large.nodes)


def test_simulated_gpus_have_devices() -> None:
    built = plan(load({**good(), "groups": {"gpu": {"count": 1, "gpus": {"count": 2, "type": "a100"}}}}))
    gpus = built.nodes[-1].gpus
    assert (gpus.count, gpus.type, gpus.devices) == (2, "a100", ("/dev/fakegpu0", "/dev/fakegpu1"))
    assert built.nodes[0].gpus.count == 0


def test_sizes_port_and_reach() -> None:
    spec = {
        **good(),
        "groups": {"gpu": {"count": 1, "size": {"cpus": 1, "memory_mb": 512}}},
        "login": {"ssh_port": 2222},
        "network": {"cidr": "10.1.0.0/24", "egress": False},
        "tags": {"owner": "me"},
    }
    built = plan(load(spec))
    assert [(n.cpus, n.memory_mb, n.ssh_port) for n in built.nodes] == [
        (2, 2048, None),
        (2, 1024, 2222),
        (1, 512, None),
    ]
    assert (built.cidr, built.egress, built.tags) == ("10.1.0.0/24", False, {"owner": "me"})


def test_an_autoscaled_group_begins_with_its_minimum() -> None:
    built = plan(load({**good(), "groups": {"gpu": {"min": 1, "max": 8}}}))
    assert [n.name for n in built.nodes if n.group] == ["gpu-1"]


def test_shared_is_the_first_volume() -> None:
    storage = {"aaa": {"mount": "/aaa"}, "shared": {}, "zzz": {"mount": "/zzz"}}
    assert [v.name for v in plan(load({**good(), "storage": storage})).volumes] == ["shared", "aaa", "zzz"]


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
