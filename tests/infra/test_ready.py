"""When the ready gate runs again: only after machines, software or configuration change."""

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


def props(nodes: Inventory, **changes: str) -> dict[str, str]:
    base = {"inventory": nodes.model_dump_json(), "environment": "/shared/env/a", "user": "muster", "applied": "1"}
    return base | {"ssh_private_key": "key"} | changes


def changes(old: dict[str, str], new: dict[str, str]) -> bool:
    olds = {k: v for k, v in old.items() if k != "ssh_private_key"} | {"fingerprint": fingerprint(old)}
    return bool(ReadyGateProvider().diff("ready-test", olds, new).changes)


SMALL = inventory(gpu_1="a", gpu_2="b")


def test_unchanged_cluster_is_not_gated_again():
    again = inventory(gpu_2="b", gpu_1="a")
    assert not changes(props(SMALL), props(again, ssh_private_key="another"))


def test_changed_machines_software_or_configuration_are_gated_again():
    assert changes(props(SMALL), props(inventory(gpu_1="a", gpu_2="c")))
    assert changes(props(SMALL), props(inventory(gpu_1="a", gpu_2="b", gpu_3="c")))
    assert changes(props(SMALL), props(SMALL, environment="/shared/env/b"))
    assert changes(props(SMALL), props(SMALL, applied="2"))


def test_nodes_that_were_left_out_are_gated_again():
    olds = {**props(SMALL), "fingerprint": fingerprint(props(SMALL)), "ready": {"left_out": {"gpu-2": "drained"}}}
    assert ReadyGateProvider().diff("ready-test", olds, props(SMALL)).changes


def test_only_passed_nodes_on_the_same_machines_are_proven():
    ready = {"tested": ["gpu-1", "gpu-2"], "proven_earlier": ["gpu-3"], "left_out": {"gpu-4": "fan"}}
    olds = {**props(inventory(gpu_1="a", gpu_2="b", gpu_3="c", gpu_4="d")), "ready": ready}
    assert proven(olds, inventory(gpu_1="a", gpu_2="x", gpu_3="c", gpu_4="d")) == ("gpu-1", "gpu-3")
    assert proven(props(SMALL), SMALL) == ()
