"""When the ready gate runs again: other machines, software or configuration, and nothing else."""

from __future__ import annotations

from cluster.inventory import Inventory, Node
from infra.resources.ready import ReadyGateProvider, fingerprint, proven


def inventory(**machines: str) -> Inventory:
    nodes = [
        Node(
            name=name.replace("_", "-"), role="compute", group="gpu", address="10.88.0.3", host_key="",
            machine_id=machine, cpus=2, memory_mb=2048,
        )
        for name, machine in machines.items()
    ]  # fmt: skip
    return Inventory(cluster="test", target="local", nodes=tuple(nodes))


def props(found: Inventory, **changes: str) -> dict[str, str]:
    base = {"inventory": found.model_dump_json(), "environment": "/shared/env/a", "user": "muster", "applied": "1"}
    return base | {"ssh_private_key": "key"} | changes


def changes(old: dict[str, str], new: dict[str, str]) -> bool:
    olds = {k: v for k, v in old.items() if k != "ssh_private_key"} | {"fingerprint": fingerprint(old)}
    return bool(ReadyGateProvider().diff("ready-test", olds, new).changes)


SMALL = inventory(gpu_1="a", gpu_2="b")


def test_the_same_cluster_needs_no_second_job():
    again = inventory(gpu_2="b", gpu_1="a")
    assert not changes(props(SMALL), props(again, ssh_private_key="another"))


def test_other_machines_software_or_configuration_need_one():
    assert changes(props(SMALL), props(inventory(gpu_1="a", gpu_2="c")))
    assert changes(props(SMALL), props(inventory(gpu_1="a", gpu_2="b", gpu_3="c")))
    assert changes(props(SMALL), props(SMALL, environment="/shared/env/b"))
    assert changes(props(SMALL), props(SMALL, applied="2"))


def test_a_node_that_was_left_out_is_looked_at_again():
    olds = {**props(SMALL), "fingerprint": fingerprint(props(SMALL)), "ready": {"left_out": {"gpu-2": "drained"}}}
    assert ReadyGateProvider().diff("ready-test", olds, props(SMALL)).changes


def test_only_nodes_that_passed_and_are_still_the_same_machines_count_as_proven():
    ready = {"tested": ["gpu-1", "gpu-2"], "proven_earlier": ["gpu-3"], "left_out": {"gpu-4": "fan"}}
    olds = {**props(inventory(gpu_1="a", gpu_2="b", gpu_3="c", gpu_4="d")), "ready": ready}
    assert proven(olds, inventory(gpu_1="a", gpu_2="x", gpu_3="c", gpu_4="d")) == ("gpu-1", "gpu-3")
    assert proven(props(SMALL), SMALL) == ()
