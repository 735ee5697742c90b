"""Create, refresh, grow, shrink, replace, destroy: what each does to its machines, and not to the others."""

from __future__ import annotations

import base64
import io
import json

import docker
import paramiko
import pytest

from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines

GPU = {"size": {"cpus": 1, "memory_mb": 512}, "gpus": {"count": 2}}


@pytest.fixture(scope="module")
def built(make: MakeMachines) -> Machines:
    machines = make("life")
    machines.up()
    return machines


@pytest.fixture
def whole(built: Machines) -> Machines:
    """The cluster with two nodes in its group, whatever the last test did to it."""
    built.spec["groups"] = {"gpu": {"count": 2, **GPU}}
    if set(built.containers()) != {"controller", "gpu-1", "gpu-2"}:
        built.up()
    return built


def test_nodes_answer_on_ssh_with_the_key_that_was_pinned(whole: Machines) -> None:
    text = json.loads(whole.pulumi("stack", "output", "--json", "--show-secrets"))["ssh_private_key"]
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    for name, node in whole.nodes.items():
        kind, blob = node["host_key"].split()
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.get_host_keys().add(node["address"], kind, paramiko.Ed25519Key(data=base64.b64decode(blob)))
        client.connect(node["address"], username="root", pkey=key, look_for_keys=False, allow_agent=False, timeout=10)
        _, out, _ = client.exec_command("hostname")
        assert out.read().decode().strip() == name
        client.close()


def test_nodes_have_their_size_devices_and_shared_files(whole: Machines) -> None:
    config = docker.APIClient().inspect_container(f"muster-{whole.spec['name']}-gpu-1")["HostConfig"]
    assert (config["NanoCpus"], config["Memory"], config["Privileged"]) == (10**9, 512 * 2**20, False)
    assert whole.run("gpu-1", "test -c /dev/fakegpu0 && test -c /dev/fakegpu1; ls /dev/fakegpu* | wc -l") == "2"
    assert whole.run("controller", "ls /dev | grep -c fakegpu || true") == "0"
    whole.run("gpu-1", "echo hello > /shared/note")
    assert whole.run("gpu-2", "cat /shared/note") == "hello"
    mounts = docker.APIClient().inspect_container(f"muster-{whole.spec['name']}-gpu-1")["Mounts"]
    assert {m["Destination"]: (m["Name"], m["RW"]) for m in mounts} == {
        "/shared": (f"muster-{whole.spec['name']}-shared", True),
        "/shared/env": ("muster-cache-env", False),
    }
    whole.run("gpu-1", "! touch /shared/env/by-a-node 2>/dev/null")
    whole.run("controller", "touch /shared/env/.by-the-controller && rm /shared/env/.by-the-controller")


def test_names_resolve_both_ways(whole: Machines) -> None:
    address = whole.nodes["gpu-2"]["address"]
    assert whole.run("gpu-1", "getent hosts gpu-2").split()[0] == address
    assert "gpu-2" in whole.run("gpu-1", f"getent hosts {address}")


def test_second_up_changes_nothing(whole: Machines) -> None:
    before = whole.containers()
    whole.up("--expect-no-changes")
    assert whole.containers() == before


def test_lost_and_stopped_nodes_come_back_and_others_are_left_alone(whole: Machines) -> None:
    nodes, before = whole.nodes, whole.containers()
    api = docker.APIClient()
    api.remove_container(before["gpu-1"][0], force=True)
    api.stop(before["gpu-2"][0])
    whole.up()
    after = whole.containers()
    assert after["controller"] == before["controller"]
    assert after["gpu-2"][0] == before["gpu-2"][0]
    assert after["gpu-1"][0] != before["gpu-1"][0]
    again = whole.nodes
    assert {n: node["address"] for n, node in again.items()} == {n: node["address"] for n, node in nodes.items()}
    assert again["gpu-1"]["host_key"] != nodes["gpu-1"]["host_key"]
    assert again["gpu-1"]["machine_id"] == after["gpu-1"][0]
    assert again["gpu-2"] == nodes["gpu-2"]


def test_paused_node_goes_on(whole: Machines) -> None:
    before = whole.containers()
    docker.APIClient().pause(before["gpu-1"][0])
    whole.up()
    assert whole.run("gpu-1", "hostname") == "gpu-1"
    assert whole.containers() == before


def test_growth_and_shrinking_touch_no_other_node(whole: Machines) -> None:
    nodes, before = whole.nodes, whole.containers()
    whole.spec["groups"]["gpu"]["count"] = 4
    whole.up()
    grown = whole.containers()
    assert set(grown) == {"controller", "gpu-1", "gpu-2", "gpu-3", "gpu-4"}
    assert {name: grown[name] for name in before} == before
    assert {name: whole.nodes[name] for name in nodes} == nodes
    whole.spec["groups"]["gpu"]["count"] = 2
    whole.up()
    assert whole.containers() == before
    assert [left for left in whole.leftovers() if "gpu-3" in left or "gpu-4" in left] == []


def test_order_tags_and_written_defaults_replace_nothing(whole: Machines) -> None:
    whole.spec["groups"]["aux"] = {"count": 1, **GPU}
    whole.up()
    before, nodes = whole.containers(), whole.nodes
    whole.spec["groups"] = {"aux": whole.spec["groups"]["aux"], "gpu": whole.spec["groups"]["gpu"]}
    whole.up("--expect-no-changes")
    whole.spec["tags"] = {"team": "x"}
    whole.up()
    assert whole.containers() == before
    assert whole.nodes == nodes


def test_another_size_replaces_only_the_nodes_it_is_about(whole: Machines) -> None:
    nodes, before = whole.nodes, whole.containers()
    whole.spec["groups"]["gpu"]["size"] = {"cpus": 1, "memory_mb": 640}
    whole.up()
    after = whole.containers()
    assert after["controller"] == before["controller"]
    assert {name for name in before if after[name][0] != before[name][0]} == {"gpu-1", "gpu-2"}
    assert {n: node["address"] for n, node in whole.nodes.items()} == {n: node["address"] for n, node in nodes.items()}
    whole.spec["groups"]["gpu"]["size"] = {"cpus": 1, "memory_mb": 512}
    whole.up()


def test_renamed_group_gets_addresses_of_its_own(whole: Machines) -> None:
    """The old nodes still hold theirs while the new ones are made."""
    whole.spec["groups"] = {"big": whole.spec["groups"]["gpu"]}
    whole.up()
    assert set(whole.containers()) == {"controller", "big-1", "big-2"}


def test_secrets_are_nowhere_in_plain_text(whole: Machines) -> None:
    shown = json.loads(whole.state(show_secrets=True))["deployment"]["resources"]
    outputs = next(r["outputs"] for r in shown if r["type"].endswith("ClusterSecrets"))
    stored = whole.state_file.read_text()
    for name in ("ssh_private_key", "slurm_key", "db_password"):
        value = json.loads(outputs[name]["plaintext"])
        assert len(value) > 40
        assert value not in stored
        assert value[10:40] not in stored
    assert "OPENSSH PRIVATE KEY" not in stored


def test_destroy_leaves_nothing_but_the_cache(whole: Machines) -> None:
    whole.destroy()
    assert whole.leftovers() == []
    labels = docker.from_env().volumes.get("muster-cache-env").attrs["Labels"]
    assert set(labels) == {"muster.cache", "muster.id"}
    assert labels["muster.cache"] == "env"
