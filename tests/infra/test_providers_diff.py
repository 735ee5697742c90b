"""The diffs of the local providers: which changes replace a resource, which update it, which do nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pulumi.output import Unknown

from cluster.spec import ClusterSpec
from infra.guard import ChangeGuardProvider
from infra.resources.properties import Properties
from infra.targets.local.build import node_container
from infra.targets.local.build.cluster import list_mounts
from infra.targets.local.build.docker_network import DockerNetworkProvider
from infra.targets.local.build.docker_node import DockerNodeProvider
from infra.targets.local.docker_engine import Engine
from infra.targets.local.plan import plan

NODE: Properties = {
    "node": "gpu-1",
    "cluster": "demo",
    "stack": "local",
    "role": "compute",
    "group": "gpu",
    "image": "muster-node:24.11",
    "cpus": 2,
    "memory_mb": 2048,
    "devices": ["/dev/fakegpu0"],
    "network": "muster-demo",
    "network_id": "abc",
    "address": "10.88.0.20",
    "mounts": [{"volume": "muster-demo-shared", "target": "/shared"}],
    "ssh_public_key": "ssh-ed25519 AAAA",
    "tags": {},
}
NETWORK: Properties = {"cluster": "demo", "stack": "local", "nodes": ["a-1", "b-1"], "egress": False}
RECORDED = NETWORK | {"range": "10.88.0.0/24", "addresses": {"a-1": "10.88.0.20", "b-1": "10.88.0.21"}}


@pytest.mark.parametrize(
    ("change", "replaces"),
    [
        ({"memory_mb": 4096}, ["memory_mb"]),
        ({"cpus": 1}, ["cpus"]),
        ({"devices": []}, ["devices"]),
        ({"network_id": "def"}, ["network_id"]),
        ({"ssh_port": 2222}, ["ssh_port"]),
        ({"mounts": []}, ["mounts"]),
        ({"mounts": [NODE["mounts"][0] | {"read_only": True}]}, ["mounts"]),
    ],
)
def test_node_is_replaced_when_its_machine_changes(change: Properties, replaces: list[str]) -> None:
    result = DockerNodeProvider().diff("id", NODE | {"running": True}, NODE | change)
    assert (result.changes, result.replaces, result.delete_before_replace) == (True, replaces, True)


@pytest.mark.parametrize(
    "change", [{}, {"tags": {"team": "x"}}, {"address": Unknown(), "network_id": Unknown()}, {"mounts": [Unknown()]}]
)
def test_node_is_unchanged_if_only_tags_change_or_values_are_unknown(change: Properties) -> None:
    result = DockerNodeProvider().diff("id", NODE | {"running": True}, NODE | change)
    assert (result.changes, result.replaces) == (False, [])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"running": False}, {}),
        ({"running": True}, {"ssh_public_key": "other"}),
        ({"running": True}, {"image": "muster-node:26.05"}),
    ],
)
def test_stopped_node_changed_key_or_upgraded_slurm_is_an_update(old: Properties, new: Properties) -> None:
    result = DockerNodeProvider().diff("id", NODE | old, NODE | new)
    assert (result.changes, result.replaces) == (True, [])


@pytest.mark.parametrize(
    ("change", "changes", "replaces"),
    [
        ({}, False, []),
        ({"nodes": ["b-1", "a-1"]}, False, []),
        ({"nodes": ["a-1"]}, True, []),
        ({"nodes": ["a-1", "b-1", "b-2"]}, True, []),
        ({"cidr": "10.88.0.0/24"}, False, []),
        ({"cidr": "10.99.0.0/24"}, True, ["cidr"]),
        ({"egress": True}, True, ["egress"]),
    ],
)
def test_node_names_update_a_network_and_its_range_replaces_it(
    change: Properties, changes: bool, replaces: list[str]
) -> None:
    result = DockerNetworkProvider().diff("id", RECORDED, NETWORK | change)
    assert (result.changes, result.replaces) == (changes, replaces)


def test_guard_compares_parsed_specs() -> None:
    group = {"count": 1}
    olds, news, more = (
        {"stack": "s", "spec": json.dumps({"name": "demo", "target": "local", "groups": groups})}
        for groups in ({"a": group, "b": group}, {"b": group, "a": group}, {"a": group})
    )
    assert ChangeGuardProvider().diff("id", olds, news).changes is False
    assert ChangeGuardProvider().diff("id", olds, more).changes is True


@pytest.mark.parametrize(
    ("engine", "cgroupns", "writable"),
    [
        (Engine(cgroup_version=1, major=20), "host", False),
        (Engine(cgroup_version=1, major=28), "host", False),
        (Engine(cgroup_version=2, major=27), "private", False),
        (Engine(cgroup_version=2, major=28), "private", True),
    ],
)
def test_cgroup_options_depend_on_the_engine(engine: Engine, cgroupns: str, writable: bool) -> None:
    config: dict[str, Any] = node_container.host_config(NODE, engine, "1.41")
    assert config["CgroupnsMode"] == cgroupns
    assert ("writable-cgroups=true" in config["SecurityOpt"]) is writable
    assert not config.get("Privileged")
    assert not config.get("Ulimits")
    assert config["Devices"][0]["PathInContainer"] == "/dev/fakegpu0"


def test_security_modules_do_not_confine_a_node() -> None:
    """AppArmor's `docker-default` denies every mount, even with SYS_ADMIN."""
    config: dict[str, Any] = node_container.host_config(NODE, Engine(cgroup_version=2, major=27), "1.41")
    assert config["SecurityOpt"] == ["seccomp=unconfined", "apparmor=unconfined", "label=disable"]


def test_read_only_mounts() -> None:
    mounts = [{"volume": "a", "target": "/a"}, {"volume": "b", "target": "/a/b", "read_only": True}]
    config: dict[str, Any] = node_container.host_config(NODE | {"mounts": mounts}, Engine(1, 20), "1.41")
    assert [(m["Target"], m["ReadOnly"]) for m in config["Mounts"]] == [("/a", False), ("/a/b", True)]


@pytest.mark.parametrize(("node", "read_only"), [("controller", False), ("login", True), ("gpu-1", True)])
def test_only_the_controller_can_write_to_the_shared_cache(node: str, read_only: bool) -> None:
    spec = ClusterSpec.model_validate({"name": "demo", "target": "local", "groups": {"gpu": {"count": 1}}})
    build_plan = plan(spec)
    planned_node = next(planned for planned in build_plan.nodes if planned.name == node)
    volume, cache = list_mounts(build_plan, planned_node)
    assert volume == {"volume": "muster-demo-shared", "target": "/shared"}
    assert (cache["volume"], cache.get("read_only", False)) == ("muster-cache-env", read_only)


def test_port_is_published_on_the_loopback_address_only() -> None:
    config = node_container.host_config(NODE | {"ssh_port": 2222}, Engine(1, 20), "1.41")
    assert config["PortBindings"] == {"22/tcp": [{"HostIp": "127.0.0.1", "HostPort": "2222"}]}


def test_spec_hash_ignores_inputs_that_can_change_in_place() -> None:
    same = NODE | {"ssh_public_key": "other", "tags": {"a": "b"}, "cpus": 2.0}
    assert node_container.spec_hash(same) == node_container.spec_hash(NODE)
    assert node_container.spec_hash(NODE | {"cpus": 1}) != node_container.spec_hash(NODE)


def test_a_node_that_was_upgraded_can_still_be_used() -> None:
    upgraded = NODE | {"image": "muster-node:26.05"}
    assert node_container.spec_hash(NODE) != node_container.spec_hash(upgraded)
    assert node_container.spec_hash(NODE) in node_container.usable_hashes(upgraded)
    assert node_container.spec_hash(NODE) not in node_container.usable_hashes(upgraded | {"cpus": 1})
