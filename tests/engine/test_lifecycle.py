"""Create, refresh, grow, shrink, replace and destroy a cluster; other machines are not touched."""

from __future__ import annotations

import base64
import io
import json
import time

import docker
import paramiko
import pytest

from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines
from tests.fault_matrix.times import record

GPU = {"size": {"cpus": 1, "memory_mb": 512}, "gpus": {"count": 2}}


@pytest.fixture(scope="module")
def built(make: MakeMachines) -> Machines:
    machines = make("life")
    machines.up()
    return machines


@pytest.fixture
def cluster(built: Machines) -> Machines:
    """Return the cluster with two nodes in its group; the next `up` removes groups that the last test added."""
    built.spec["groups"] = {"gpu": {"count": 2, **GPU}}
    if not {"controller", "gpu-1", "gpu-2"} <= set(built.containers()):
        built.up()
    return built


def test_nodes_answer_ssh_with_the_pinned_host_key(cluster: Machines) -> None:
    text = json.loads(cluster.pulumi("stack", "output", "--json", "--show-secrets"))["ssh_private_key"]
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    for name, node in cluster.nodes.items():
        kind, blob = node["host_key"].split()
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        client.get_host_keys().add(node["address"], kind, paramiko.Ed25519Key(data=base64.b64decode(blob)))
        client.connect(node["address"], username="root", pkey=key, look_for_keys=False, allow_agent=False, timeout=60)
        _, out, _ = client.exec_command("hostname")
        assert out.read().decode().strip() == name
        client.close()


def test_nodes_have_their_size_devices_and_shared_files(cluster: Machines) -> None:
    config = docker.APIClient().inspect_container(f"muster-{cluster.spec['name']}-gpu-1")["HostConfig"]
    assert (config["NanoCpus"], config["Memory"], config["Privileged"]) == (10**9, 512 * 2**20, False)
    assert cluster.run("gpu-1", "test -c /dev/fakegpu0 && test -c /dev/fakegpu1; ls /dev/fakegpu* | wc -l") == "2"
    assert cluster.run("controller", "ls /dev | grep -c fakegpu || true") == "0"
    cluster.run("gpu-1", "echo hello > /shared/note")
    assert cluster.run("gpu-2", "cat /shared/note") == "hello"
    mounts = docker.APIClient().inspect_container(f"muster-{cluster.spec['name']}-gpu-1")["Mounts"]
    assert {m["Destination"]: (m["Name"], m["RW"]) for m in mounts} == {
        "/shared": (f"muster-{cluster.spec['name']}-shared", True),
        "/shared/env": ("muster-cache-env", False),
    }
    cluster.run("gpu-1", "! touch /shared/env/from-a-node 2>/dev/null")
    cluster.run("controller", "touch /shared/env/.from-the-controller && rm /shared/env/.from-the-controller")


def test_names_resolve_both_ways(cluster: Machines) -> None:
    address = cluster.nodes["gpu-2"]["address"]
    assert cluster.run("gpu-1", "getent hosts gpu-2").split()[0] == address
    assert "gpu-2" in cluster.run("gpu-1", f"getent hosts {address}")


def test_state_has_no_secrets_in_plain_text(cluster: Machines) -> None:
    shown = json.loads(cluster.state(show_secrets=True))["deployment"]["resources"]
    outputs = next(r["outputs"] for r in shown if r["type"].endswith("ClusterSecrets"))
    stored = cluster.state_file.read_text()
    for name in ("ssh_private_key", "slurm_key", "db_password"):
        value = json.loads(outputs[name]["plaintext"])
        assert len(value) > 40
        assert value not in stored
        assert value[10:40] not in stored
    assert "OPENSSH PRIVATE KEY" not in stored


def test_second_up_changes_nothing(cluster: Machines) -> None:
    before = cluster.containers()
    cluster.up("--expect-no-changes")
    assert cluster.containers() == before


@pytest.mark.fault(24)
def test_up_restores_removed_and_stopped_nodes_only(cluster: Machines) -> None:
    nodes, before = cluster.nodes, cluster.containers()
    api = docker.APIClient()
    api.remove_container(before["gpu-1"][0], force=True)
    api.stop(before["gpu-2"][0])
    began = time.monotonic()
    cluster.up()
    recover_s = time.monotonic() - began
    after = cluster.containers()
    assert after["controller"] == before["controller"]
    assert after["gpu-2"][0] == before["gpu-2"][0]
    assert after["gpu-1"][0] != before["gpu-1"][0]
    again = cluster.nodes
    assert {n: node["address"] for n, node in again.items()} == {n: node["address"] for n, node in nodes.items()}
    assert again["gpu-1"]["host_key"] != nodes["gpu-1"]["host_key"]
    assert again["gpu-1"]["machine_id"] == after["gpu-1"][0]
    assert again["gpu-2"] == nodes["gpu-2"]
    record(24, recover_s=recover_s)


def test_up_resumes_a_paused_node(cluster: Machines) -> None:
    before = cluster.containers()
    docker.APIClient().pause(before["gpu-1"][0])
    cluster.up()
    assert cluster.run("gpu-1", "hostname") == "gpu-1"
    assert cluster.containers() == before


def test_growing_and_shrinking_do_not_touch_other_nodes(cluster: Machines) -> None:
    nodes, before = cluster.nodes, cluster.containers()
    cluster.spec["groups"]["gpu"]["count"] = 4
    cluster.up()
    grown = cluster.containers()
    assert set(grown) == {"controller", "gpu-1", "gpu-2", "gpu-3", "gpu-4"}
    assert {name: grown[name] for name in before} == before
    assert {name: cluster.nodes[name] for name in nodes} == nodes
    cluster.spec["groups"]["gpu"]["count"] = 2
    cluster.up()
    assert cluster.containers() == before
    assert [left for left in cluster.leftovers() if "gpu-3" in left or "gpu-4" in left] == []


def test_order_and_tags_replace_nothing(cluster: Machines) -> None:
    cluster.spec["groups"]["aux"] = {"count": 1, **GPU}
    cluster.up()
    before, nodes = cluster.containers(), cluster.nodes
    cluster.spec["groups"] = {"aux": cluster.spec["groups"]["aux"], "gpu": cluster.spec["groups"]["gpu"]}
    cluster.up("--expect-no-changes")
    cluster.spec["tags"] = {"team": "x"}
    cluster.up()
    assert cluster.containers() == before
    assert cluster.nodes == nodes


@pytest.mark.nightly
def test_changed_size_replaces_only_its_nodes(cluster: Machines) -> None:
    nodes, before = cluster.nodes, cluster.containers()
    cluster.spec["groups"]["gpu"]["size"] = {"cpus": 1, "memory_mb": 640}
    cluster.up()
    after = cluster.containers()
    assert set(after) == {"controller", "gpu-1", "gpu-2"}
    assert after["controller"] == before["controller"]
    assert {name for name in after if after[name][0] != before[name][0]} == {"gpu-1", "gpu-2"}
    assert {n: node["address"] for n, node in cluster.nodes.items()} == {n: nodes[n]["address"] for n in after}


@pytest.mark.nightly
def test_renamed_group_gets_new_addresses(cluster: Machines) -> None:
    """The old nodes keep their addresses while the new ones are created."""
    cluster.spec["groups"] = {"big": cluster.spec["groups"]["gpu"]}
    cluster.up()
    assert set(cluster.containers()) == {"controller", "big-1", "big-2"}


def test_destroy_leaves_only_the_cache(built: Machines) -> None:
    built.destroy()
    assert built.leftovers() == []
    labels = docker.from_env().volumes.get("muster-cache-env").attrs["Labels"]
    assert set(labels) == {"muster.cache", "muster.id"}
    assert labels["muster.cache"] == "env"
